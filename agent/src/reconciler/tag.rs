//! The tag of a node in a container: which incarnation of which device it was made for.

use devgate_core::{DesiredNode, Generation};

use crate::executors::device_nodes::{InvalidName, NodeTag};

/// `GENERATION+DEVICE`, the generation in hexadecimal.
pub(super) fn tag(node: &DesiredNode) -> Result<NodeTag, InvalidName> {
    NodeTag::try_from(format!("{}+{}", node.generation, node.device))
}

/// The generation that a tag names; `None` for a tag of another form, whose node is then made anew.
pub(super) fn generation(tag: &NodeTag) -> Option<Generation> {
    let (generation, _) = tag.as_str().split_once('+')?;
    u32::from_str_radix(generation, 16).ok().map(Generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_its_generation() {
        let tag = NodeTag::try_from(format!("{}+usb-0403-6001", Generation(0x2a))).unwrap();
        assert_eq!(generation(&tag), Some(Generation(0x2a)));
        assert_eq!(generation(&NodeTag::try_from("other".to_owned()).unwrap()), None);
    }
}
