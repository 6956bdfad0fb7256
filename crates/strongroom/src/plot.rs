//! Plots: what is drawn, and drawing it as SVG.

mod chart;
mod svg;

pub use chart::{Chart, Figure, Look, Series, Value};
pub use svg::{draw, escape, number};
