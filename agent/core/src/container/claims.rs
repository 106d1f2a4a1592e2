use std::collections::BTreeSet;

use crate::{Claim, ClaimSource, ClassName, Container, Warning};

/// The label by which whoever starts a container asks for classes, separated by commas.
const CLASSES_LABEL: &str = "devgate.dev/classes";

/// containerd's namespace for Kubernetes, where the labels of images are merged into those of containers by the CRI
/// plugin, and wishes are read from the pod instead.
const KUBERNETES_NAMESPACE: &str = "k8s.io";

impl Container {
    /// All its wishes: those that its source learnt elsewhere and that of its label, if the label can be trusted.
    pub fn all_claims(&self) -> (Vec<Claim>, Vec<Warning>) {
        let mut claims = self.claims.clone();
        let mut warnings = Vec::new();
        if let Some(value) = self.labels.get(CLASSES_LABEL) {
            match self.distrust_of(CLASSES_LABEL) {
                Some(warning) => warnings.push(warning),
                None => claims.push(self.claim_of(value, &mut warnings)),
            }
        }
        (claims, warnings)
    }

    /// Why a label of the container may be the word of its image. That the values differ does not help: who starts a
    /// container cannot take away a label of the image, so the image's author still decides that there is one.
    fn distrust_of(&self, label: &str) -> Option<Warning> {
        let (container, label) = (self.id.clone(), label.to_owned());
        if self.id.namespace == KUBERNETES_NAMESPACE {
            return Some(Warning::LabelNotRead { container, label });
        }
        match &self.image_labels {
            None => Some(Warning::ImageUnknown { container, label }),
            Some(image) if image.contains_key(&label) => Some(Warning::LabelFromImage { container, label }),
            Some(_) => None,
        }
    }

    fn claim_of(&self, value: &str, warnings: &mut Vec<Warning>) -> Claim {
        let mut classes = BTreeSet::new();
        for text in value.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            match ClassName::new(text) {
                Some(class) => {
                    classes.insert(class);
                }
                None => warnings.push(Warning::BadClassName { container: self.id.clone(), text: text.to_owned() }),
            }
        }
        Claim { holder: self.id.clone(), source: ClaimSource::Label, classes, expires_at: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ContainerState, Labels, RuntimeId};

    fn labels(value: Option<&str>) -> Labels {
        value.map(|value| (CLASSES_LABEL.to_owned(), value.to_owned())).into_iter().collect()
    }

    fn container(namespace: &str, label: &str, image_labels: Option<Labels>) -> Container {
        Container {
            id: RuntimeId { runtime: "containerd".into(), namespace: namespace.into(), id: "demo".into() },
            state: ContainerState::Stopped,
            labels: labels(Some(label)),
            image_labels,
            claims: Vec::new(),
        }
    }

    fn classes(container: &Container) -> (Vec<String>, Vec<String>) {
        let (claims, warnings) = container.all_claims();
        let classes = claims.iter().flat_map(|claim| &claim.classes).map(ToString::to_string).collect();
        (classes, warnings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_label_names_classes() {
        let (classes, warnings) = classes(&container("default", "scanner, printer,,", Some(labels(None))));
        assert_eq!(classes, ["printer", "scanner"]);
        assert!(warnings.is_empty());
    }

    #[test]
    fn a_word_that_names_no_class_leaves_the_others() {
        let (classes, warnings) = classes(&container("default", "scanner,../x,Printer", Some(labels(None))));
        assert_eq!(classes, ["scanner"]);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
    }

    // Fault: agent/core/src/container/claims.rs
    // -             Some(image) if image.contains_key(&label) => Some(Warning::LabelFromImage { container, label }),
    // +             Some(image) if image.is_empty() && !label.is_empty() => None,
    #[test]
    fn a_label_that_the_image_carries_too_is_ignored() {
        for image in ["scanner", "printer", ""] {
            let (classes, warnings) = classes(&container("default", "scanner", Some(labels(Some(image)))));
            assert!(classes.is_empty(), "{image}: {classes:?}");
            assert_eq!(
                warnings,
                ["containerd/default/demo: the label devgate.dev/classes is ignored, since the image carries it too"]
            );
        }
    }

    #[test]
    fn a_label_is_ignored_when_the_image_cannot_be_read() {
        let (classes, warnings) = classes(&container("default", "scanner", None));
        assert_eq!((classes.len(), warnings.len()), (0, 1));
    }

    #[test]
    fn labels_are_not_read_in_the_namespace_of_kubernetes() {
        let (classes, warnings) = classes(&container("k8s.io", "scanner", Some(labels(None))));
        assert_eq!((classes.len(), warnings.len()), (0, 1));
    }
}
