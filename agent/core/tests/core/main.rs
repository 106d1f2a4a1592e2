//! Tests of the whole core through its public interface: classes against recorded devices, rows of the bug list,
//! random histories against a model of the world.

mod batches;
mod classes;
mod histories;
mod identities;
mod plans;
mod replug;
mod rows;
mod support;
