//! `devgate check` as users call it.

use std::fs;
use std::process::Command;

const GOOD: &str = "apiVersion: devgate.dev/v1alpha1
kind: DeviceClass
metadata: { name: scanner }
spec:
  match: [ { subsystem: tty } ]
  allocation: { kind: All }
";

fn check(files: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let names = files.iter().map(|(name, _)| *name);
    let output = Command::new(env!("CARGO_BIN_EXE_devgate"))
        .arg("check")
        .args(names)
        .current_dir(&folder)
        .output()
        .expect("devgate runs");
    let text = |bytes| String::from_utf8(bytes).expect("it speaks UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn good_files_are_passed_over_in_silence() {
    let two = format!("# two classes\n---\n{GOOD}---\n{}---\n", GOOD.replace("scanner", "printer"));
    assert_eq!(check(&[("a.yaml", &two), ("empty.yaml", "")]), (Some(0), String::new(), String::new()));
}

#[test]
fn all_problems_of_all_files_are_told_at_once() {
    let bad = GOOD.replace("tty", "t*y").replace("All", "Some") + "  access: rx\n";
    let (status, out, err) = check(&[("a.yaml", GOOD), ("b.yaml", &bad), ("c.yaml", "---\nkind: Pod\n---\n[\n")]);
    assert_eq!(status, Some(1));
    assert_eq!(err, "devgate: 5 problems\n");
    let lines: Vec<_> = out.lines().map(|line| line.split_inclusive(": ").take(4).collect::<String>()).collect();
    assert_eq!(
        lines,
        [
            "b.yaml:5: class scanner: spec.match[0].subsystem: \"t*y\": ",
            "b.yaml:6: class scanner: spec.allocation.kind: \"Some\": ",
            "b.yaml:7: class scanner: spec.access: \"rx\": ",
            "c.yaml:2: kind: \"Pod\": documents of this kind do not belong here; write kind: ",
            "c.yaml:5: while parsing a node, did not find expected node content; look at the indentation, quotes and brackets \
             here and above",
        ],
        "{out}"
    );
}

#[test]
fn a_file_that_is_not_there_is_a_problem() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_devgate")).args(["check", "/nowhere/a.yaml"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("/nowhere/a.yaml:1: the file cannot be read: "));
}
