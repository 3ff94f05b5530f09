//! A macro for the methods of [`ExecutionPlan`](datafusion::physical_plan::ExecutionPlan) that all operators of this
//! crate implement in the same way.

/// Implements [`ExecutionPlan`](datafusion::physical_plan::ExecutionPlan) for a node that replaces a node of
/// DataFusion. Most methods call the same method of the replaced node; `execute` does not.
macro_rules! delegate_to_original {
    ($node:ident, $name:literal) => {
        impl datafusion::physical_plan::DisplayAs for $node {
            fn fmt_as(
                &self,
                kind: datafusion::physical_plan::DisplayFormatType,
                text: &mut std::fmt::Formatter<'_>,
            ) -> std::fmt::Result {
                let ran = self.counters.ran();
                write!(text, "{}: {}", $name, ran.operator)?;
                if !ran.ways.is_empty() {
                    write!(text, ", ran={ran}")?;
                }
                if matches!(kind, datafusion::physical_plan::DisplayFormatType::Verbose) {
                    write!(text, ", instead of ")?;
                    self.original.fmt_as(kind, text)?;
                }
                Ok(())
            }
        }

        impl datafusion::physical_plan::ExecutionPlan for $node {
            fn name(&self) -> &str {
                $name
            }

            fn properties(&self) -> &std::sync::Arc<datafusion::physical_plan::PlanProperties> {
                self.original.properties()
            }

            fn children(&self) -> Vec<&std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
                self.original.children()
            }

            fn maintains_input_order(&self) -> Vec<bool> {
                self.original.maintains_input_order()
            }

            fn benefits_from_input_partitioning(&self) -> Vec<bool> {
                self.original.benefits_from_input_partitioning()
            }

            fn apply_expressions(
                &self,
                visit: &mut dyn FnMut(
                    &std::sync::Arc<dyn datafusion::physical_plan::PhysicalExpr>,
                ) -> datafusion::error::Result<
                    datafusion::common::tree_node::TreeNodeRecursion,
                >,
            ) -> datafusion::error::Result<datafusion::common::tree_node::TreeNodeRecursion> {
                self.original.apply_expressions(visit)
            }

            fn with_new_children(
                self: std::sync::Arc<Self>,
                children: Vec<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>>,
            ) -> datafusion::error::Result<std::sync::Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
                let original = datafusion::physical_plan::execution_plan::replace_children_if_necessary(
                    self.original.clone(),
                    children,
                )?;
                let Some(mut ours) = $node::of(&original, &self.shared)? else { return Ok(original) };
                // The new node is the same operator for another run, as in a recursive query, so it uses the existing
                // counters.
                self.shared.remove_counters(&ours.counters);
                (ours.claim, ours.counters) = (self.claim.clone(), self.counters.clone());
                Ok(std::sync::Arc::new(ours))
            }

            fn execute(
                &self,
                partition: usize,
                context: std::sync::Arc<datafusion::execution::TaskContext>,
            ) -> datafusion::error::Result<datafusion::execution::SendableRecordBatchStream> {
                self.run(partition, context)
            }
        }
    };
}
pub(crate) use delegate_to_original;
