//! Which schemes there are: plain iSCSI, and every scheme of the channel. A scheme that is added there is measured here.

use strongroom_block::Mode;
use strongroom_channel::Scheme;

use crate::BenchError;

/// A row of the lazy-crypto paper that this build can speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemeChoice {
    /// S0: plain iSCSI, no channel, a plain volume.
    Plain,
    /// A channel, and the volume that the paper's row has behind it.
    Channel(Scheme),
}

impl SchemeChoice {
    /// All there are, in the paper's order.
    pub fn all() -> Vec<SchemeChoice> {
        let mut all = vec![SchemeChoice::Plain];
        all.extend(Scheme::ALL.iter().copied().map(SchemeChoice::Channel));
        all
    }

    /// As in the paper: `S0`, `S2-5`.
    pub fn name(self) -> &'static str {
        match self {
            SchemeChoice::Plain => "S0",
            SchemeChoice::Channel(scheme) => scheme.name(),
        }
    }

    /// Whether there is a channel.
    pub fn is_channel(self) -> bool {
        self != SchemeChoice::Plain
    }

    /// How the paper's row has blocks sealed by initiators; `None` where the channel alone protects them, on a plain
    /// volume, as IPsec does.
    pub fn sealing(self) -> Option<Mode> {
        match self {
            SchemeChoice::Channel(Scheme::LazyAuth) => Some(Mode::AuthenticateOnly),
            SchemeChoice::Channel(Scheme::LazyDecrypt | Scheme::Lazy) => Some(Mode::Encrypt),
            SchemeChoice::Plain | SchemeChoice::Channel(Scheme::MacAll | Scheme::EncryptAll) => None,
        }
    }

    fn from_name(name: &str) -> Option<SchemeChoice> {
        match name.parse::<Scheme>() {
            Ok(scheme) => Some(SchemeChoice::Channel(scheme)),
            Err(_) if ["S0", "PLAIN"].contains(&name.to_ascii_uppercase().as_str()) => Some(SchemeChoice::Plain),
            Err(_) => None,
        }
    }

    /// Reads a list as on the command line, `S0,S2-5` or `plain,lazy`; `all` for all. The paper's hardware rows are the software rows
    /// before them.
    ///
    /// # Errors
    /// [`BenchError::Asked`] for a name that is none, or is not there yet.
    pub fn list(text: &str) -> Result<Vec<SchemeChoice>, BenchError> {
        let all = SchemeChoice::all();
        if text.eq_ignore_ascii_case("all") {
            return Ok(all);
        }
        let mut chosen = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let Some(found) = SchemeChoice::from_name(name) else {
                let names = all.iter().map(|scheme| scheme.name()).collect::<Vec<_>>().join(", ");
                let problem = format!("this build cannot speak scheme '{name}'; it can speak {names} (or write all)");
                return Err(BenchError::Asked(problem));
            };
            if !chosen.contains(&found) {
                chosen.push(found);
            }
        }
        if chosen.is_empty() {
            return Err(BenchError::Asked("name at least one scheme, as in --schemes S0,S2-5, or write all".into()));
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_found_by_their_papers_names() {
        let all = SchemeChoice::list("all").unwrap();
        assert_eq!(all[0], SchemeChoice::Plain);
        for scheme in &all {
            assert_eq!(SchemeChoice::list(&scheme.name().to_lowercase()).unwrap(), [*scheme]);
        }
        assert_eq!(SchemeChoice::list("S0, S0").unwrap().len(), 1);
        assert_eq!(SchemeChoice::list("plain,lazy,S2-6").unwrap(), SchemeChoice::list("S0,S2-5").unwrap());
        let error = SchemeChoice::list("S0,S9-9").unwrap_err().to_string();
        assert!(error.contains("S9-9") && error.contains("S0, "), "{error}");
        assert!(SchemeChoice::list(",").is_err());
    }
}
