//! Proves that the documents' steps work as they are written: `scripts/walkthrough.sh` types them. Needs root and namespaces.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::stage::{can_mount, has, unshare};

#[test]
fn the_documents_steps_do_what_they_say() {
    if !can_mount() || !has("unshare") || !has("mkfs.ext4") || !has("ip") {
        return;
    }
    let may = unshare(&["--net", "--pid", "--fork", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        return eprintln!("passed over: no namespaces can be made here");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/walkthrough.sh");
    let output =
        Command::new(script).args(["--short", env!("CARGO_BIN_EXE_strongroom")]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("every step did what the documents say"), "{said}");
}
