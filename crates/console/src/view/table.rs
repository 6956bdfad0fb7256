//! Tables, which become cards on a narrow screen. The roles say again what the elements mean, because the style sheet takes it from them
//! there.

use maud::{Markup, html};

/// A column: its heading, and whether it has numbers.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    /// Text, to the left.
    Text(&'static str),
    /// Numbers, to the right.
    Number(&'static str),
}

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Column::Text(heading) | Column::Number(heading) => heading,
        }
    }

    fn class(self) -> Option<&'static str> {
        matches!(self, Column::Number(_)).then_some("number")
    }
}

/// Rows shown at most; the page says so, and how to find the others.
pub(crate) const ROWS_MAX: usize = 500;

/// A table. The first column names the row.
pub(crate) fn table(caption: &str, columns: &[Column], rows: &[Vec<Markup>]) -> Markup {
    html! {
        table role="table" {
            caption { (caption) }
            thead role="rowgroup" {
                tr role="row" {
                    @for column in columns {
                        th scope="col" role="columnheader" class=[column.class()] { (column.heading()) }
                    }
                }
            }
            tbody role="rowgroup" {
                @for row in rows {
                    tr role="row" {
                        @for (at, (column, cell)) in columns.iter().zip(row).enumerate() {
                            @if at == 0 {
                                th scope="row" role="rowheader" { (cell) }
                            } @else {
                                td role="cell" data-label=(column.heading()) class=[column.class()] { span { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Names and values, one below the other.
pub(crate) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in facts {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}
