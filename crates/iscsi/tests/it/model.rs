//! Proves that for all that two sessions may negotiate, and in every order of events, every command is executed once with
//! exactly its data and every result arrives once with exactly its data, status, sense and residual.

use proptest::prelude::*;

use crate::pair::model::Model;

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

/// Each showed a fault once: 1526858351032036255, a reset that ended commands sent behind it.
#[test]
fn seeds_that_showed_faults() {
    for seed in [1_526_858_351_032_036_255, 8_746_576_124_348_529_178] {
        Model::new(seed, true).run(60);
        Model::new(seed, false).run(60);
    }
}
