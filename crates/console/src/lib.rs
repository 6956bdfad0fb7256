//! The web console of a target: pages that show what it does, and that manage its peers. A process of its own, which listens on the
//! loopback only and talks to nothing but the admin socket (`docs/admin.md`). `docs/console.md` says what protects it.
//!
//! [`Console`] is all that the command needs. Inside: `server` has connections and their bounds, `routes` the pages and `guard` what each
//! request must be, `login` links and sessions, `target` what is asked of the admin socket, `history` rates, and `view` the HTML.
//!
//! Deliberately absent: anything that needs a key, and everything that changes a volume.

mod assets;
mod console;
mod guard;
mod history;
mod login;
mod routes;
mod server;
mod target;
mod view;

pub use console::{Console, ConsoleError, ConsoleOptions};
