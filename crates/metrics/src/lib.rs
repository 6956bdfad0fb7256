//! The metrics room: where a process answers those who collect metrics, how metrics are described, and how they are written.
//!
//! A process hands [`MetricsServer::start`] an address and a function that measures it. The function is called for each scrape, in the
//! server's own thread; what it measures is an [`Exposition`], whose metrics are [`Definition`]s. The text is OpenMetrics 1.0.
//!
//! Deliberately absent: the metrics of any process (the binary has them), an asynchronous runtime, TLS and authentication. An address is the
//! loopback's or a Unix socket's, and nothing else.

mod address;
mod definition;
mod exposition;
mod request;
mod server;
mod socket;

pub use address::{AddressError, MetricsAddress};
pub use definition::{Definition, MetricKind};
pub use exposition::{Exposition, Number};
#[doc(hidden)]
pub use request::fuzz_request;
pub use server::{MetricsError, MetricsServer};
