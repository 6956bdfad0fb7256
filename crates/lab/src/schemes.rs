//! Which schemes there are: plain iSCSI, every scheme of the channel, and those that ECL carries. A scheme that is added there is measured here.

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
    /// The same volume over the transport ECL (`docs/ecl.md`).
    Ecl(Scheme),
}

/// What begins the names of schemes over ECL.
const ECL: &str = "ECL-";

impl SchemeChoice {
    /// All there are over iSCSI, in the paper's order.
    pub fn all() -> Vec<SchemeChoice> {
        let mut all = vec![SchemeChoice::Plain];
        all.extend(Scheme::ALL.iter().copied().map(SchemeChoice::Channel));
        all
    }

    /// All that ECL carries.
    pub fn all_over_ecl() -> Vec<SchemeChoice> {
        [Scheme::LazyAuth, Scheme::Lazy].map(SchemeChoice::Ecl).to_vec()
    }

    /// As in the paper: `S0`, `S2-5`; over ECL `ECL-S2-5`.
    pub fn name(self) -> &'static str {
        match self {
            SchemeChoice::Plain => "S0",
            SchemeChoice::Channel(scheme) => scheme.name(),
            SchemeChoice::Ecl(Scheme::LazyAuth) => "ECL-S1-2",
            SchemeChoice::Ecl(_) => "ECL-S2-5",
        }
    }

    /// What the handshake is asked for; `None` where there is none.
    pub fn channel(self) -> Option<Scheme> {
        match self {
            SchemeChoice::Plain => None,
            SchemeChoice::Channel(scheme) | SchemeChoice::Ecl(scheme) => Some(scheme),
        }
    }

    /// Whether commands and blocks travel over ECL.
    pub fn is_ecl(self) -> bool {
        matches!(self, SchemeChoice::Ecl(_))
    }

    /// Whether there is a channel.
    pub fn is_channel(self) -> bool {
        self != SchemeChoice::Plain
    }

    /// How the paper's row has blocks sealed by initiators; `None` where the channel alone protects them, on a plain
    /// volume, as IPsec does.
    pub fn sealing(self) -> Option<Mode> {
        match self.channel()? {
            Scheme::LazyAuth => Some(Mode::AuthenticateOnly),
            Scheme::LazyDecrypt | Scheme::Lazy => Some(Mode::Encrypt),
            Scheme::MacAll | Scheme::EncryptAll => None,
        }
    }

    fn from_name(name: &str) -> Option<SchemeChoice> {
        if let Some((ecl, rest)) = name.split_at_checked(ECL.len())
            && ecl.eq_ignore_ascii_case(ECL)
        {
            let scheme = SchemeChoice::Ecl(rest.parse::<Scheme>().ok()?);
            return SchemeChoice::all_over_ecl().into_iter().find(|carried| *carried == scheme);
        }
        match name.parse::<Scheme>() {
            Ok(scheme) => Some(SchemeChoice::Channel(scheme)),
            Err(_) if ["S0", "PLAIN"].contains(&name.to_ascii_uppercase().as_str()) => Some(SchemeChoice::Plain),
            Err(_) => None,
        }
    }

    /// Reads a list as on the command line, `S0,S2-5` or `plain,lazy,ECL-S2-5`; `all` for all over iSCSI. The paper's hardware rows are the
    /// software rows before them.
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
                let names = all.iter().copied().chain(SchemeChoice::all_over_ecl());
                let names = names.map(SchemeChoice::name).collect::<Vec<_>>().join(", ");
                let problem = format!(
                    "this build cannot speak scheme '{name}'; it can speak {names} (or write all, for all over iSCSI)"
                );
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
        for scheme in SchemeChoice::all_over_ecl() {
            assert_eq!(SchemeChoice::list(&scheme.name().to_lowercase()).unwrap(), [scheme]);
            assert!(scheme.is_ecl() && scheme.is_channel() && scheme.sealing().is_some() && !all.contains(&scheme));
        }
        assert_eq!(SchemeChoice::list("ecl-lazy").unwrap(), SchemeChoice::list("ECL-S2-6").unwrap());
        assert!(SchemeChoice::list("ECL-S2-1").unwrap_err().to_string().contains("ECL-S1-2, ECL-S2-5"));
        assert_eq!(SchemeChoice::list("S0, S0").unwrap().len(), 1);
        assert_eq!(SchemeChoice::list("plain,lazy,S2-6").unwrap(), SchemeChoice::list("S0,S2-5").unwrap());
        let error = SchemeChoice::list("S0,S9-9").unwrap_err().to_string();
        assert!(error.contains("S9-9") && error.contains("S0, "), "{error}");
        assert!(SchemeChoice::list(",").is_err());
    }
}
