//! Compiles the CSI specification, `proto/csi.proto`, with protox: no protoc is needed. Absent: any change of it.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = Path::new("proto/csi.proto");
    println!("cargo:rerun-if-changed={}", proto.display());
    println!("cargo:rerun-if-changed=build.rs");
    let files = protox::compile([proto], [Path::new("proto")])?;
    // Requests with secrets: their `Debug` must not show them, and `src/spec.rs` has one that does not.
    let all = files.file.iter().flat_map(|file| &file.message_type);
    let with_secrets = all.filter(|message| message.field.iter().any(|field| field.name() == "secrets"));
    let with_secrets: Vec<String> = with_secrets.map(|message| format!(".csi.v1.{}", message.name())).collect();
    let mut config = prost_build::Config::new();
    config.skip_debug(with_secrets);
    // Its comments are Markdown of another kind.
    config.disable_comments(["."]);
    tonic_prost_build::configure()
        .build_client(true)
        .build_transport(false)
        .generate_default_stubs(true)
        .compile_fds_with_config(files, config)?;
    Ok(())
}
