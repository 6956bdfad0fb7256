//! How often, and over how many connections, the block of a command was fetched that does not authenticate.

use strongroom_block::Lba;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fetches {
    block: Option<Lba>,
    pub(super) total: u32,
    pub(super) on_this_connection: u32,
    pub(super) connections: u32,
    /// The session of the last one.
    session: u64,
}

impl Fetches {
    /// One more was in vain.
    pub(super) fn failed(&mut self, lba: Lba, session: u64) {
        // The blocks before it opened.
        if self.block.is_none_or(|block| block < lba) {
            *self = Fetches { block: Some(lba), ..Fetches::default() };
        }
        if self.connections == 0 || self.session != session {
            self.session = session;
            self.connections += 1;
            self.on_this_connection = 0;
        }
        self.on_this_connection += 1;
        self.total += 1;
    }

    pub(super) fn describe(&self, further: &str) -> String {
        let times = if self.total == 1 { "once".to_owned() } else { format!("{} times", self.total) };
        let over = match self.connections {
            1 => "over one connection".to_owned(),
            connections => format!("over {connections} connections"),
        };
        format!("the block does not open: it was fetched {times} {over}{further}")
    }
}
