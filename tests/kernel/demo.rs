//! The terminal recording of the documents, made again.

use std::fs;
use std::path::Path;

use super::netns::run;

#[test]
#[ignore = "needs root and a network namespace"]
fn the_recorded_demo_is_what_its_script_records_now() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/demo");
    let script = folder.join("record");
    let now = run(&[script.to_str().unwrap(), env!("CARGO_BIN_EXE_kpx")], "");
    let path = folder.join("kpx.cast");
    #[expect(clippy::disallowed_methods, reason = "the one setting of this test")]
    if std::env::var("KPX_BLESS").is_ok() {
        fs::write(&path, &now).unwrap();
    }
    let have = fs::read_to_string(&path).unwrap();
    assert!(
        have == now,
        "docs/demo/kpx.cast is stale. Run as root `KPX_BLESS=1 cargo test --test kernel -- --ignored demo`.\n{now}"
    );
}
