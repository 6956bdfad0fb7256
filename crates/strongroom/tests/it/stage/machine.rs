//! Another machine than the target's, whose user has a home of their own and nothing in it; and commands on the target's.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::{CommandOutput, World, run, strongroom};

pub(crate) struct Machine<'a> {
    pub(crate) world: &'a World,
    pub(crate) home: &'static str,
}

impl Machine<'_> {
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = strongroom(arguments);
        command.env("XDG_CONFIG_HOME", self.world.path(self.home));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.world.finish(self.command(arguments))
    }

    /// With something on standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &str) -> CommandOutput {
        let mut command = self.command(arguments);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        // One that does not read it has said why.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        CommandOutput::new(child.wait_with_output().unwrap())
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.world.text(&format!("{}/strongroom/{name}", self.home))
    }

    pub(crate) fn public_key(&self) -> String {
        self.run(&["identity", "show"]).ok().trim().to_owned()
    }
}

/// A command about the target, on its machine.
pub(crate) fn on_target(world: &World, arguments: &[&str]) -> CommandOutput {
    run(&[arguments, &["--config", &world.text("strongroom.toml")]].concat())
}
