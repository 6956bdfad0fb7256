//! TLS: with certificates that openssl has made.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use strongroom_block::{BlockSize, Geometry};

use super::client::{Client, FLUSH, FUA, greet, option};
use super::{PATIENCE, SIZE, eventually, options, pattern};
use crate::MemoryDevice;
use crate::front::nbd::{NbdAddress, NbdCertificates, NbdOptions, NbdServer};

fn has_openssl() -> bool {
    let has =
        Command::new("openssl").arg("version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !has {
        eprintln!("passed over: openssl is not installed");
    }
    has
}

fn openssl(directory: &Path, arguments: &str) {
    let made = Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output().unwrap();
    assert!(made.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&made.stderr));
}

/// An authority; certificates of the server and a client by it, and one of a stranger by itself.
fn certificates() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30";
    for (name, subject) in [("ca", "authority"), ("stranger", "stranger")] {
        openssl(path, &format!("req -x509 {new_key} -subj /CN={subject} -keyout {name}-key.pem -out {name}-cert.pem"));
    }
    std::fs::write(path.join("server.ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").unwrap();
    std::fs::write(path.join("client.ext"), "extendedKeyUsage=clientAuth\n").unwrap();
    for name in ["server", "client"] {
        openssl(path, &format!("req {new_key} -subj /CN={name} -keyout {name}-key.pem -out {name}.csr"));
        openssl(
            path,
            &format!(
                "x509 -req -in {name}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 30 -extfile {name}.ext -out {name}-cert.pem"
            ),
        );
    }
    std::fs::set_permissions(path.join("server-key.pem"), PermissionsExt::from_mode(0o600)).unwrap();
    directory
}

fn client_config(directory: &Path, identity: Option<&str>) -> ClientConfig {
    let certificate = |name: &str| CertificateDer::from_pem_file(directory.join(format!("{name}-cert.pem"))).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    match identity {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let key = PrivateKeyDer::from_pem_file(directory.join(format!("{name}-key.pem"))).unwrap();
            builder.with_client_auth_cert(vec![certificate(name)], key).unwrap()
        }
    }
}

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// A connection that has begun TLS.
fn connect(server: &NbdServer, config: ClientConfig) -> TlsStream {
    let mut stream = plain(server);
    greet(&mut stream).unwrap();
    assert_eq!(option(&mut stream, 5, b"").unwrap().0, 1);
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

fn plain(server: &NbdServer) -> TcpStream {
    let NbdAddress::Tcp(address) = server.address() else { panic!("{server:?}") };
    let stream = TcpStream::connect(("127.0.0.1", address.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn serve(directory: &Path) -> NbdServer {
    let device = Arc::new(MemoryDevice::new(Geometry::from_bytes(SIZE, BlockSize::DEFAULT).unwrap()));
    let options = NbdOptions { certificates: Some(NbdCertificates::load(directory).unwrap()), ..options() };
    NbdServer::start(device, &NbdAddress::Tcp("0.0.0.0:0".parse().unwrap()), options).unwrap()
}

#[test]
fn clients_with_a_certificate_are_served_at_any_address() {
    if !has_openssl() {
        return;
    }
    let directory = certificates();
    let server = serve(directory.path());
    assert!(server.uri().starts_with("nbds://0.0.0.0:"), "{}", server.uri());
    let stream = connect(&server, client_config(directory.path(), Some("client")));
    let mut client = Client::negotiate(stream, true).unwrap();
    let data = pattern(3, 5 << 20);
    client.write(FUA, 100, &data);
    assert!(client.read(100, data.len() as u32) == data);
    // Keys change within the session, and many requests are in flight.
    client.stream.conn.refresh_traffic_keys().unwrap();
    let due: Vec<u64> = (0..100).map(|at| client.send(0, 0, at * 4096, 4096, b"")).collect();
    for _ in &due {
        assert_eq!(client.reply(0).1.error, 0);
    }
    client.done(0, FLUSH, 0, 0);
    client.send(0, 2, 0, 0, b"");
    assert_eq!(client.stream.read(&mut [0; 16]).unwrap(), 0, "the session ends in order");
    drop(client);
    eventually("it is gone", || server.connection_count() == 0);
    server.finish().unwrap();
}

#[test]
fn attack_nbd_without_a_certificate() {
    if !has_openssl() {
        return;
    }
    let directory = certificates();
    let server = serve(directory.path());
    // Without TLS nothing is told, and nothing served.
    let mut stream = plain(&server);
    greet(&mut stream).unwrap();
    assert_eq!(option(&mut stream, 3, b"").unwrap().0, 0x8000_0005);
    assert_eq!(option(&mut stream, 7, &[0; 6]).unwrap().0, 0x8000_0005);
    assert!(option(&mut stream, 1, b"vault").is_err(), "it is closed");
    // With TLS, but with no certificate, or that of a stranger.
    for identity in [None, Some("stranger")] {
        let stream = connect(&server, client_config(directory.path(), identity));
        assert!(Client::negotiate(stream, true).is_err(), "{identity:?} is served");
    }
    // What is not TLS at all.
    let mut stream = plain(&server);
    greet(&mut stream).unwrap();
    assert_eq!(option(&mut stream, 5, b"").unwrap().0, 1);
    stream.write_all(&[0x55; 400]).unwrap();
    assert!(stream.read_to_end(&mut Vec::new()).is_ok_and(|len| len < 100), "an alert at most");
    // A certificate that was revoked.
    std::fs::write(
        directory.path().join("ca.conf"),
        "[ca]\ndefault_ca=a\n[a]\ndatabase=index.txt\ncrlnumber=crlnumber\ndefault_md=sha256\ndefault_crl_days=30\n",
    )
    .unwrap();
    std::fs::write(directory.path().join("index.txt"), "").unwrap();
    std::fs::write(directory.path().join("crlnumber"), "01\n").unwrap();
    let authority = "ca -config ca.conf -keyfile ca-key.pem -cert ca-cert.pem";
    openssl(directory.path(), &format!("{authority} -revoke client-cert.pem"));
    openssl(directory.path(), &format!("{authority} -gencrl -out ca-crl.pem"));
    let stream = connect(&serve(directory.path()), client_config(directory.path(), Some("client")));
    assert!(Client::negotiate(stream, true).is_err(), "a revoked certificate is taken");
    let stream = connect(&server, client_config(directory.path(), Some("client")));
    assert!(Client::negotiate(stream, true).is_ok(), "the server without the list knows nothing of it");
    server.abandon();
}

#[test]
fn certificates_that_cannot_be_used_are_explained() {
    if !has_openssl() {
        return;
    }
    let directory = certificates();
    let path = directory.path();
    let refused = |part: &str| {
        let error = NbdCertificates::load(path).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let key = path.join("server-key.pem");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).unwrap();
    refused("chmod 600");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let right = std::fs::read(&key).unwrap();
    std::fs::write(&key, std::fs::read(path.join("client-key.pem")).unwrap()).unwrap();
    refused("server-cert.pem and server-key.pem");
    std::fs::write(&key, "nothing").unwrap();
    refused("must be in PEM");
    std::fs::write(&key, right).unwrap();
    NbdCertificates::load(path).unwrap();
    std::fs::write(path.join("server-cert.pem"), "").unwrap();
    refused("no certificate");
    std::fs::remove_file(path.join("ca-cert.pem")).unwrap();
    refused("docs/nbd.md");
}
