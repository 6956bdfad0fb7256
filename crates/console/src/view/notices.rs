//! Pages that only say something: what is wrong and what to do about it, or what came of a form.

use maud::{Markup, html};

use super::figures::text;
use super::layout::outside;
use crate::target::TargetProblem;

/// Who is not logged in, or no longer.
pub(crate) fn not_logged_in() -> Markup {
    outside(
        "Not logged in",
        &html! {
            p { "This browser is not logged in to the console, or its login has expired." }
            p { "Press Enter in the terminal where " code { "strongroom console" } " runs, or run it again, and open the link that it prints. A link is good once, for ten minutes." }
        },
    )
}

/// The page that a link opens.
pub(crate) fn login() -> Markup {
    outside(
        "Log in",
        &html! {
            p #message { "This page needs the link that " code { "strongroom console" } " has printed: open that link." }
            noscript { p { "Logging in needs JavaScript of this console; the pages behind it do not." } }
        },
    )
}

/// In place of what the target would have told.
pub(crate) fn problem(problem: &TargetProblem) -> Markup {
    html! {
        section #problem data-live role="alert" class="notice bad" {
            p { (text(&problem.to_string())) }
            @if matches!(problem, TargetProblem::NotRunning(_)) {
                p { "Start it with " code { "strongroom serve" } ", or say which one with " code { "--root" } ", " code { "--config" } " or "
                    code { "--socket" } " of " code { "strongroom console" } "." }
            }
            p { "This page tries again by itself, and shows the target when it answers." }
        }
    }
}

/// A form was not done.
pub(crate) fn refused(why: &str) -> Markup {
    html! { section role="alert" class="notice bad" { p { (text(why)) } } }
}
