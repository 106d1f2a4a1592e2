//! An image made by hand, of nothing but busybox.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// The name of an image without labels.
pub const PLAIN: &str = "devgate.dev/test/plain:1";

/// Where Debian's `busybox-static` has it.
const BUSYBOX: &str = "/bin/busybox";

/// Folders of the image besides `/bin`.
const FOLDERS: [&str; 6] = ["dev", "etc", "proc", "run", "sys", "tmp"];

/// Part of an image, which is called by its digest.
struct Blob {
    digest: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(content: Vec<u8>) -> Self {
        Self { digest: format!("sha256:{:x}", Sha256::digest(&content)), content }
    }

    fn descriptor(&self, kind: &str) -> Value {
        let media_type = format!("application/vnd.oci.image.{kind}");
        json!({ "mediaType": media_type, "digest": self.digest, "size": self.content.len() })
    }
}

/// Writes an archive in the layout that OCI has laid down, with one image of this name.
pub fn write(archive: &Path, name: &str, labels: &[(&str, &str)]) -> Result<()> {
    let layer = Blob::new(layer()?);
    let labels: Value = labels.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
    let configuration = Blob::new(serde_json::to_vec(&json!({
        "architecture": architecture(),
        "os": "linux",
        "config": { "Cmd": ["/bin/sh"], "Env": ["PATH=/bin"], "Labels": labels },
        "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
    }))?);
    let manifest = Blob::new(serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": configuration.descriptor("config.v1+json"),
        "layers": [layer.descriptor("layer.v1.tar")],
    }))?);
    let mut entry = manifest.descriptor("manifest.v1+json");
    entry["annotations"] = json!({ "io.containerd.image.name": name });
    let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": [entry] }))?;

    let mut tar = Builder::new(File::create(archive)?);
    append(&mut tar, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    append(&mut tar, "index.json", 0o644, &index)?;
    for Blob { digest, content } in [layer, configuration, manifest] {
        append(&mut tar, &digest.replace("sha256:", "blobs/sha256/"), 0o644, &content)?;
    }
    tar.finish().context("cannot write an image")
}

/// The file system: busybox under each of its names.
fn layer() -> Result<Vec<u8>> {
    let busybox = fs::read(BUSYBOX)
        .with_context(|| format!("cannot read {BUSYBOX}; `cargo xtask deps` installs busybox-static"))?;
    let output = Command::new(BUSYBOX).arg("--list").output().context("cannot run busybox")?;
    ensure!(output.status.success(), "busybox --list: {}", output.status);
    let mut tar = Builder::new(Vec::new());
    for folder in FOLDERS.iter().chain(&["bin"]) {
        let mut header = header(EntryType::Directory, 0o755, 0);
        tar.append_data(&mut header, folder, io::empty())?;
    }
    append(&mut tar, "bin/busybox", 0o755, &busybox)?;
    for name in String::from_utf8(output.stdout)?.lines().filter(|name| *name != "busybox") {
        let mut header = header(EntryType::Symlink, 0o777, 0);
        tar.append_link(&mut header, Path::new("bin").join(name), "busybox")?;
    }
    Ok(tar.into_inner()?)
}

fn append(tar: &mut Builder<impl Write>, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    tar.append_data(&mut header(EntryType::Regular, mode, content.len() as u64), path, content)
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

/// As Go calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
