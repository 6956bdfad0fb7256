//! The same plots as pixels, for programs that do not show SVG. The font is built in, so that a machine without fonts draws the same.

use crate::BenchError;

/// The figure as PNG; `None` if that is not built in.
#[cfg(not(feature = "png"))]
pub(crate) fn from_svg(_svg: &str) -> Result<Option<Vec<u8>>, BenchError> {
    Ok(None)
}

/// Pixels for each unit of the drawing.
#[cfg(feature = "png")]
const SCALE: f32 = 1.6;

/// The figure as PNG; `None` if that is not built in.
#[cfg(feature = "png")]
pub(crate) fn from_svg(svg: &str) -> Result<Option<Vec<u8>>, BenchError> {
    use std::sync::Arc;

    use resvg::tiny_skia::{Pixmap, Transform};
    use resvg::usvg::{Options, Tree, fontdb::Database};

    // Subsets of DejaVu Sans: what plots and numbers need of it (licence beside them).
    let mut fonts = Database::new();
    fonts.load_font_data(include_bytes!("../../fonts/DejaVuSans-subset.ttf").to_vec());
    fonts.load_font_data(include_bytes!("../../fonts/DejaVuSans-Bold-subset.ttf").to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let options = Options { fontdb: Arc::new(fonts), font_family: "DejaVu Sans".into(), ..Options::default() };
    let wrong = |problem: String| BenchError::process("plots", problem);
    let tree = Tree::from_str(svg, &options).map_err(|error| wrong(error.to_string()))?;
    let size = tree.size();
    let pixels = Pixmap::new((size.width() * SCALE).ceil() as u32, (size.height() * SCALE).ceil() as u32);
    let mut pixels = pixels.ok_or_else(|| wrong("the plot is too large for a picture".into()))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map(Some).map_err(|error| wrong(error.to_string()))
}
