//! The process that the crash test kills.

fn main() {
    strongroom_testing::crash_writer();
}
