//! What is drawn, without how: figures of charts of series of values.

/// Charts that belong together, under one title.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// For file names.
    pub name: String,
    /// For people.
    pub title: String,
    /// What else must be known to read it.
    pub note: String,
    /// One beside or below the other.
    pub charts: Vec<Chart>,
}

/// One pair of axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// What the vertical axis shows.
    pub axis: String,
    /// Along the horizontal axis; a line break begins a second line.
    pub groups: Vec<String>,
    /// One colour each.
    pub series: Vec<Series>,
    /// How.
    pub look: Look,
}

/// How values are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Bars side by side, from zero.
    Bars,
    /// Points joined by lines, on a logarithmic axis.
    Lines,
}

/// What has one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// For each group.
    pub values: Vec<Option<Value>>,
}

/// One bar or point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number with its whisker.
    Measured {
        /// The bar.
        middle: f64,
        /// The whisker's lower end.
        low: f64,
        /// The whisker's upper end.
        high: f64,
    },
    /// There were errors: shown as such, never as a number.
    Failed,
}

impl Chart {
    /// Whether there is anything to see.
    pub fn has_values(&self) -> bool {
        self.series.iter().flat_map(|series| &series.values).any(|value| matches!(value, Some(Value::Measured { .. })))
    }

    /// The smallest and the largest number in it.
    pub(crate) fn range(&self) -> (f64, f64) {
        let mut range = (f64::MAX, 0.0f64);
        for value in self.series.iter().flat_map(|series| &series.values).flatten() {
            if let Value::Measured { middle, low, high } = value {
                range = (range.0.min(*low).min(*middle), range.1.max(*high).max(*middle));
            }
        }
        range
    }
}
