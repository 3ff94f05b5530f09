//! Values of subqueries in fragments. A subquery of one value runs before the rest of the query. The client then sends its
//! value with each fragment that uses it.
//!
//! DataFusion plans such a subquery apart, and its value is an expression that reads the result of that plan. A node makes
//! the same plan of the query and does not run the subquery: it gives the expression the value of the client.

use std::{io::Cursor, sync::Arc};

use arrow::{
    array::{ArrayRef, RecordBatchOptions},
    datatypes::{Field, Schema},
    ipc::{reader::StreamReader, writer::StreamWriter},
    record_batch::RecordBatch,
};
use datafusion::{
    common::{
        ScalarValue,
        tree_node::{TreeNode, TreeNodeRecursion},
    },
    error::Result,
    logical_expr::ColumnarValue,
    physical_expr::scalar_subquery::ScalarSubqueryExpr,
    physical_plan::{ExecutionPlan, PhysicalExpr},
};

use crate::Error;

/// The largest size of the encoded values of a fragment, in bytes.
pub(super) const VALUES_BYTES_MAX: usize = 1 << 20;

/// Returns the uses of values of subqueries in a plan, in the order of a walk from the root.
pub(super) fn uses_of(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
    let mut uses = Vec::new();
    plan.apply(|node| {
        node.apply_expressions(&mut |expression| {
            expression.apply(|part| {
                if part.is::<ScalarSubqueryExpr>() {
                    uses.push(part.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(uses)
}

/// Encodes the values of uses as one row of an Arrow IPC stream. The subqueries have run.
pub(super) fn encoded(uses: &[Arc<dyn PhysicalExpr>]) -> Result<Vec<u8>> {
    if uses.is_empty() {
        return Ok(Vec::new());
    }
    let no_row = RecordBatch::new_empty(Arc::new(Schema::empty()));
    let value = |of: &Arc<dyn PhysicalExpr>| match of.evaluate(&no_row)? {
        ColumnarValue::Scalar(value) => value.to_array(),
        ColumnarValue::Array(_) => {
            Err(Error::Internal("a subquery of one value has several".to_string()).into())
        }
    };
    let columns = uses.iter().map(value).collect::<Result<Vec<ArrayRef>>>()?;
    let field = |(number, column): (usize, &ArrayRef)| {
        Field::new(number.to_string(), column.data_type().clone(), true)
    };
    let schema = Arc::new(Schema::new(columns.iter().enumerate().map(field).collect::<Vec<Field>>()));
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(schema.clone(), columns, &options)?;
    let mut stream = StreamWriter::try_new(Vec::new(), &schema)?;
    stream.write(&row)?;
    let bytes = stream.into_inner()?;
    match bytes.len() > VALUES_BYTES_MAX {
        true => Err(Error::Query(format!(
            "the values of subqueries have {} bytes, and nodes take {VALUES_BYTES_MAX}",
            bytes.len()
        ))
        .into()),
        false => Ok(bytes),
    }
}

/// Gives the uses in a plan their values. The plan must have the uses that were encoded.
pub(super) fn set_values(plan: &Arc<dyn ExecutionPlan>, encoded: &[u8]) -> crate::Result<()> {
    let uses = uses_of(plan)?;
    let row = match encoded.is_empty() {
        true => RecordBatch::new_empty(Arc::new(Schema::empty())),
        false => StreamReader::try_new(Cursor::new(encoded), None)
            .and_then(|mut rows| rows.next().unwrap_or_else(|| Ok(RecordBatch::new_empty(rows.schema()))))
            .map_err(|error| Error::Query(format!("the values of subqueries cannot be read: {error}")))?,
    };
    let is_same = |(column, of): (&ArrayRef, &Arc<dyn PhysicalExpr>)| {
        of.data_type(&plan.schema()).is_ok_and(|kind| kind == *column.data_type())
    };
    let is_whole = row.num_columns() == uses.len() && (uses.is_empty() || row.num_rows() == 1);
    if !is_whole || !row.columns().iter().zip(&uses).all(is_same) {
        return Err(Error::Query("the request has other values of subqueries than the query".to_string()));
    }
    for (column, of) in row.columns().iter().zip(&uses) {
        let Some(of) = of.downcast_ref::<ScalarSubqueryExpr>() else { continue };
        #[expect(deprecated, reason = "nothing else tells which result a use reads")]
        let index = of.index();
        if of.results().get(index).is_none() {
            of.results().set(index, ScalarValue::try_from_array(column, 0)?)?;
        }
    }
    Ok(())
}
