//! The same process on a store that leaves its syncs out: the crash test must find that.

fn main() {
    strongroom_testing::crash_writer();
}
