//! Proves that whatever two sessions negotiate, and in whatever order things happen, every command is executed once with
//! exactly its data and every result arrives once with exactly its data, status, sense and residual.

mod pair;

use pair::model::Model;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plain_sessions_agree_with_the_model(seed: u64) {
        Model::new(seed, false).run(60);
    }

    #[test]
    fn sealed_sessions_agree_with_the_model(seed: u64) {
        Model::new(seed, true).run(60);
    }
}

/// Tags and sequence numbers are used many times over.
#[test]
fn a_long_session_agrees_with_the_model() {
    Model::new(1, false).run(3000);
    Model::new(2, true).run(3000);
}
