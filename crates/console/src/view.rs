//! The pages as HTML. Each takes what it shows, and returns text; everything that comes from elsewhere is escaped, twice over: for HTML
//! (maud), and what is not plainly visible (`foreign`).

pub(crate) mod attention;
pub(crate) mod commands;
pub(crate) mod figures;
pub(crate) mod layout;
pub(crate) mod notices;
pub(crate) mod overview;
pub(crate) mod peers;
pub(crate) mod sessions;
pub(crate) mod sparkline;
pub(crate) mod table;
pub(crate) mod volume;
pub(crate) mod volumes;
