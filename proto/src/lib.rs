//! Wire contracts that Devgate speaks, and the code generated from them.

/// The contract between kubelet and a device plugin.
pub mod deviceplugin {
    /// Version v1beta1 (Kubernetes 1.10 and newer).
    #[expect(
        missing_docs,
        clippy::allow_attributes,
        clippy::allow_attributes_without_reason,
        clippy::pedantic,
        unused_qualifications,
        reason = "generated; the contract is documented in its file"
    )]
    pub mod v1beta1 {
        tonic::include_proto!("v1beta1");
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use crate::deviceplugin::v1beta1::{ContainerAllocateResponse, Device, NumaNode, RegisterRequest, TopologyInfo};

    /// Written by hand from the field numbers: tag, length, bytes.
    #[test]
    fn register_request_has_the_published_field_numbers() {
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: "d.sock".into(),
            resource_name: "devgate.dev/x".into(),
            options: None,
        };
        assert_eq!(request.encode_to_vec(), b"\x0a\x07v1beta1\x12\x06d.sock\x1a\x0ddevgate.dev/x");
    }

    #[test]
    fn absent_topology_is_not_an_empty_one() {
        let device = Device { id: "a".into(), health: "Healthy".into(), topology: None };
        assert_eq!(device.encode_to_vec(), b"\x0a\x01a\x12\x07Healthy");
        let topology = TopologyInfo { nodes: vec![NumaNode { id: 1 }] };
        let device = Device { topology: Some(topology), ..device };
        assert_eq!(device.encode_to_vec(), b"\x0a\x01a\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01");
    }

    #[test]
    fn annotations_are_field_four() {
        let response =
            ContainerAllocateResponse { annotations: [("k".to_owned(), "v".to_owned())].into(), ..Default::default() };
        assert_eq!(response.encode_to_vec(), b"\x22\x06\x0a\x01k\x12\x01v");
    }
}
