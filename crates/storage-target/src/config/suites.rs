//! The cipher suites that channels may have, as a configuration names them.

use serde::{Deserialize, Serialize};
use strongroom_block::Suite;

/// Names of cipher suites, the preferred one first. Only the names are in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct SuiteRule {
    /// aes-256-gcm, aes-128-gcm, chacha20-poly1305.
    pub names: Vec<String>,
    /// Admit the suites that are for benchmarks alone, too. No file can say so.
    pub benchmarks: bool,
}

impl Default for SuiteRule {
    fn default() -> SuiteRule {
        let real = Suite::ALL.into_iter().filter(|suite| !suite.is_for_benchmarks_only());
        SuiteRule::from(real.map(|suite| suite.name().to_owned()).collect::<Vec<String>>())
    }
}

impl From<Vec<String>> for SuiteRule {
    fn from(names: Vec<String>) -> SuiteRule {
        SuiteRule { names, benchmarks: false }
    }
}

impl From<SuiteRule> for Vec<String> {
    fn from(rule: SuiteRule) -> Vec<String> {
        rule.names
    }
}
