//! Which schemes and cipher suites channels may have.

use strongroom_block::{Suite, UnknownSuite};
use strongroom_channel::{Scheme, UnknownScheme};

use super::Config;
use crate::error::ConfigError;

pub(super) fn schemes_default() -> Vec<String> {
    // The default first, then the rest: it is what an initiator that leaves the choice to us gets.
    let others = Scheme::ALL.iter().filter(|scheme| **scheme != Scheme::default());
    std::iter::once(&Scheme::default()).chain(others).map(|scheme| scheme.name().to_owned()).collect()
}

impl Config {
    /// The schemes that channels may have, the preferred one first.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a name that is no scheme's, or if there is none.
    pub fn channel_schemes(&self) -> Result<Vec<Scheme>, ConfigError> {
        let parsed: Result<Vec<Scheme>, UnknownScheme> = self.schemes.iter().map(|name| name.parse()).collect();
        match parsed {
            Ok(schemes) if schemes.is_empty() => {
                Err(ConfigError::value("schemes", "is empty; name at least one, or leave the line out"))
            }
            Ok(schemes) => Ok(schemes),
            Err(error) => Err(ConfigError::value("schemes", error.to_string())),
        }
    }

    /// The cipher suites that channels may have, the preferred one first.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a name that is no suite's, for one that is for benchmarks alone, or if there is none.
    pub fn channel_suites(&self) -> Result<Vec<Suite>, ConfigError> {
        let wrong = |problem: String| ConfigError::value("suites", problem);
        let mut suites = Vec::new();
        for name in &self.suites.names {
            let suite: Suite = name.parse().map_err(|error: UnknownSuite| wrong(error.to_string()))?;
            if suite.is_for_benchmarks_only() {
                return Err(wrong(format!("{suite} protects nothing today and is for benchmarks alone; leave it out")));
            }
            suites.push(suite);
        }
        if suites.is_empty() {
            return Err(wrong("is empty; name at least one, or leave the line out".to_owned()));
        }
        if self.suites.benchmarks {
            suites.extend(Suite::ALL.into_iter().filter(|suite| suite.is_for_benchmarks_only()));
        }
        Ok(suites)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SuiteRule;

    #[test]
    fn suites_are_admitted_by_name_and_the_papers_by_no_file() {
        let config = Config::new("/srv");
        let real = [Suite::Aes256Gcm, Suite::Aes128Gcm, Suite::ChaCha20Poly1305];
        assert_eq!(config.channel_suites().unwrap(), real);
        let one = Config::parse("root = \"/srv\"\nsuites = [\"ChaCha20-Poly1305\"]").unwrap();
        assert_eq!(one.channel_suites().unwrap(), [Suite::ChaCha20Poly1305]);
        for (wrong, part) in [
            ("\"rot13\"", "rot13"),
            ("\"paper\"", "benchmarks alone"),
            ("", "empty"),
            ("\"aes192-cbc+hmac-md5\"", "benchmarks"),
        ] {
            let error = Config::parse(&format!("root = \"/srv\"\nsuites = [{wrong}]")).unwrap_err().to_string();
            assert!(error.contains("suites") && error.contains(part), "{error}");
        }
        let bench = Config { suites: SuiteRule { benchmarks: true, ..one.suites.clone() }, ..one };
        assert_eq!(
            bench.channel_suites().unwrap(),
            [Suite::ChaCha20Poly1305, Suite::Aes192CbcHmacMd5, Suite::TripleDesCbcHmacMd5]
        );
    }
}
