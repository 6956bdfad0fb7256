//! Reads of blocks under unknown key epochs: they wait while the source of the keys is asked, once.

use strongroom_block::Lba;

use super::command::Command;
use crate::pipeline::sealing::Sealing;

/// Commands that wait for the answer to a question.
#[derive(Debug, Default)]
pub(super) struct KeyQuestions {
    waiting: Vec<(u64, usize)>,
}

impl KeyQuestions {
    /// A command found no key for a block. Whether it waits for the answer to a question about it.
    pub(super) fn ask(
        &mut self,
        key: usize,
        command: &mut Command,
        sealing: Option<&Sealing>,
        lba: Option<Lba>,
    ) -> bool {
        if std::mem::replace(&mut command.asked_for_keys, true) {
            return false;
        }
        let Some(question) = sealing.and_then(|sealing| sealing.ask_for_keys(lba)) else { return false };
        self.waiting.push((question, key));
        true
    }

    /// The commands whose question was answered.
    pub(super) fn take_answered(&mut self, sealing: Option<&Sealing>) -> Vec<usize> {
        let answered = |question| sealing.is_none_or(|sealing| sealing.is_answered(question));
        self.waiting.extract_if(.., |(question, _)| answered(*question)).map(|(_, key)| key).collect()
    }

    /// The session is gone: its commands are sent again anyway.
    pub(super) fn disconnected(&mut self) {
        self.waiting.clear();
    }
}
