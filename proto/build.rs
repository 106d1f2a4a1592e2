//! Generates the code of the contracts. No `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let contracts = ["kubelet/deviceplugin_v1beta1.proto"];
    for contract in contracts {
        println!("cargo::rerun-if-changed=proto/{contract}");
    }
    let descriptors = protox::compile(contracts, ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
