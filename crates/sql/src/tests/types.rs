//! Tests of columns with types that no reader supports.

use arrow::{
    array::{ArrayRef, Decimal32Array, Int32Array, IntervalDayTimeArray, ListViewArray, UnionArray},
    buffer::{OffsetBuffer, ScalarBuffer},
    datatypes::{DataType, Field, Int32Type, IntervalDayTime, Schema, UnionFields},
};

use super::*;

#[test]
fn a_column_of_a_type_that_is_not_read_is_refused_with_its_type_and_those_that_are() {
    let (folder, job) = job(1);
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let views = ListViewArray::new(
        item.clone(),
        ScalarBuffer::from(vec![0, 1]),
        ScalarBuffer::from(vec![1, 1]),
        numbers.clone(),
        None,
    );
    let lists = arrow::array::ListArray::new(item, OffsetBuffer::from_lengths([1, 1]), numbers.clone(), None);
    let either = UnionFields::try_new([0], [Field::new("a", DataType::Int32, true)]).unwrap();
    let either =
        UnionArray::try_new(either, ScalarBuffer::from(vec![0, 0]), None, vec![numbers.clone()]).unwrap();
    let runs =
        arrow::array::RunArray::<Int32Type>::try_new(&Int32Array::from(vec![2]), &Int32Array::from(vec![7]))
            .unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "Decimal32(5, 2)",
            Arc::new(Decimal32Array::from(vec![1, 2]).with_precision_and_scale(5, 2).unwrap()),
        ),
        ("Interval(DayTime)", Arc::new(IntervalDayTimeArray::from(vec![IntervalDayTime::new(1, 1); 2]))),
        ("ListView(", Arc::new(views)),
        ("List(", Arc::new(lists)),
        ("Union(", Arc::new(either)),
        ("RunEndEncoded(", Arc::new(runs)),
    ];
    for (kind, column) in columns {
        let fields = vec![
            Field::new("id", DataType::Int32, false),
            Field::new("odd", column.data_type().clone(), true),
        ];
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(schema.clone(), vec![numbers.clone(), column]).unwrap();
        let path = folder.path().join("odd.arrow");
        let mut writer =
            arrow::ipc::writer::FileWriter::try_new(std::fs::File::create(&path).unwrap(), &schema).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let ask = |text: &str| {
            let mut query =
                Query::start(&job, text, Tables::default().with_files("t", std::slice::from_ref(&path)))?;
            query.next_batch()
        };
        let error = ask("SELECT odd FROM t").unwrap_err().to_string();
        for part in ["odd.arrow: column 'odd'", "not supported", kind, "supported types are integers"] {
            assert!(error.contains(part), "{kind}: {error}");
        }
        let keys = [inshore_tables::SortKey { column: "id".to_string(), descending: false }];
        let (inputs, output) = ([Input::new(&path)], folder.path().join("o.parquet"));
        let sorted = inshore_tables::sort_table(&job, &inputs, &output, &keys, &[], Default::default());
        let error = sorted.unwrap_err().to_string();
        assert!(error.contains("column 'odd'") && error.contains(kind), "{kind}: {error}");
    }
}
