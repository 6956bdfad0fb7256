//! What every page has around it: head, navigation, the place for what goes wrong.

use maud::{DOCTYPE, Markup, html};

use crate::login::Secret;

/// Pages in the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    Overview,
    Volumes,
    Sessions,
    Peers,
}

const NAVIGATION: [(Section, &str, &str); 4] = [
    (Section::Overview, "Overview", "/"),
    (Section::Volumes, "Volumes", "/volumes"),
    (Section::Sessions, "Sessions", "/sessions"),
    (Section::Peers, "Peers", "/peers"),
];

/// What a page needs to know of its viewer.
pub(crate) struct Frame<'a> {
    /// What the paths of this console begin with.
    pub(crate) base: &'a str,
    /// What its forms must bring along.
    pub(crate) form_token: &'a Secret,
    /// Which page it is.
    pub(crate) section: Section,
    /// The target answers.
    pub(crate) is_here: bool,
}

/// A whole page.
pub(crate) fn page(frame: &Frame<'_>, title: &str, content: &Markup) -> Markup {
    let content = html! {
        header {
            a.skip href="#main" { "Skip to the content" }
            div.bar {
                p.brand { span aria-hidden="true" { "◈ " } "Strongroom" }
                nav aria-label="Pages" {
                    ul {
                        @for (section, name, path) in NAVIGATION {
                            @let current = (section == frame.section).then_some("page");
                            li { a href={ (frame.base) (path) } aria-current=[current] { (name) } }
                        }
                    }
                }
                (form(frame, "/logout", &html! { button.quiet { "Log out" } }))
            }
            p #banner role="status" hidden {}
        }
        main #main tabindex="-1" {
            h1 { (title) }
            (content)
        }
    };
    document(title, frame.is_here, "/assets/console.js", &content)
}

/// A form whose fields go to a path of this console.
pub(crate) fn form(frame: &Frame<'_>, path: &str, fields: &Markup) -> Markup {
    html! {
        form method="post" action={ (frame.base) (path) } {
            input type="hidden" name="token" value=(frame.form_token.reveal());
            (fields)
        }
    }
}

/// A page for who is not logged in.
pub(crate) fn outside(title: &str, content: &Markup) -> Markup {
    let content = html! {
        header { div.bar { p.brand { span aria-hidden="true" { "◈ " } "Strongroom" } } }
        main #main tabindex="-1" { h1 { (title) } (content) }
    };
    document(title, true, "/assets/login.js", &content)
}

fn document(title: &str, is_here: bool, script: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – Strongroom" }
                link rel="icon" href="/assets/icon.svg";
                link rel="stylesheet" href="/assets/console.css";
                script src=(script) defer {}
            }
            body data-target=(if is_here { "here" } else { "away" }) { (body) }
        }
    }
}
