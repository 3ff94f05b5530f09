//! How much a scalar function makes of what it is given, before it is called.
//!
//! The library computes a function for all rows of a batch at once and asks nobody for the memory. What it will take can be
//! told from the arguments: the bytes of each row of the result, exactly or at most, and the steps where these are not about as
//! many as the bytes. [`Growth`] is the list of the functions for which this matters. Results of all others are as large as
//! their arguments, or a small number of times that.
//!
//! Telling costs a few nanoseconds for each row and argument. All arithmetic stops at 2^64.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, OffsetSizeTrait},
    compute::cast,
    datatypes::{
        DataType, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
    },
};
use datafusion::{common::ScalarValue, error::Result, logical_expr::ColumnarValue};

use crate::patterns::Language;

/// What a function will take.
pub(crate) struct Cost {
    /// The bytes of each row of the result.
    pub bytes: Each<u64>,
    /// Whether a result may be much smaller than that.
    pub is_at_most: bool,
    /// The steps for each row, where they are not about as many as bytes.
    pub steps: Each<u64>,
    /// What is taken for some rows together.
    pub once: Option<Once>,
}

/// Bytes that all rows with the same number take together.
#[derive(Debug)]
pub(crate) struct Once {
    pub of_row: Vec<u32>,
    /// By number.
    pub bytes: Vec<u64>,
}

/// How the result of a function grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Growth {
    Repeat,
    Pad,
    /// All arguments one behind the other.
    Texts,
    /// The first argument between all others.
    TextsWith,
    Encode,
    Replace,
    RegexpReplace,
    RegexpMatch,
    /// A text is compared with a pattern.
    Pattern(Language),
    ToChar,
    StringToArray,
    ArrayToString,
    Range,
    ArrayRepeat,
    ArrayResize,
    /// The elements of all arguments.
    Arrays,
    ArraysZip,
    ArrayReplace,
    /// Each character of a text with each of another.
    Levenshtein,
    Strpos,
    /// Each character of a text with each of those that are trimmed.
    Trim,
    /// Each element of a list with each of another.
    ArrayHas,
    /// As large as the type that is asked for.
    Cast,
    /// Its type is all types of its arguments together.
    Struct,
    /// Nothing: a time for a time. Where clocks are set back, that of a zone is not in the order of its argument.
    Truncated,
}

impl Growth {
    /// Of the library's function with this name; `None` where nothing grows much.
    pub fn of(name: &str) -> Option<Growth> {
        Some(match name {
            "repeat" => Growth::Repeat,
            "lpad" | "rpad" => Growth::Pad,
            "concat" | "overlay" => Growth::Texts,
            "concat_ws" => Growth::TextsWith,
            "encode" => Growth::Encode,
            "replace" => Growth::Replace,
            "regexp_replace" => Growth::RegexpReplace,
            "regexp_match" => Growth::RegexpMatch,
            "regexp_like" | "regexp_count" | "regexp_instr" => Growth::Pattern(Language::Regexp),
            "to_char" => Growth::ToChar,
            "string_to_array" => Growth::StringToArray,
            "array_to_string" => Growth::ArrayToString,
            "range" | "generate_series" => Growth::Range,
            "array_repeat" => Growth::ArrayRepeat,
            "array_resize" => Growth::ArrayResize,
            "make_array" | "array_append" | "array_prepend" | "array_concat" | "array_union" | "map" => {
                Growth::Arrays
            }
            "arrays_zip" => Growth::ArraysZip,
            "array_replace" | "array_replace_n" | "array_replace_all" => Growth::ArrayReplace,
            "levenshtein" => Growth::Levenshtein,
            "strpos" => Growth::Strpos,
            "btrim" | "ltrim" | "rtrim" => Growth::Trim,
            "array_has_all" | "array_has_any" => Growth::ArrayHas,
            "arrow_cast" | "arrow_try_cast" | "cast_to_type" | "try_cast_to_type" => Growth::Cast,
            "named_struct" | "struct" => Growth::Struct,
            "date_trunc" => Growth::Truncated,
            _ => return None,
        })
    }

    /// Whether constants are first given to each row, and more than the result has to be counted.
    pub fn writes_out(self, args: &[ColumnarValue]) -> bool {
        match self {
            // What they are is told by the result.
            Growth::Repeat | Growth::Pad | Growth::Texts | Growth::TextsWith => false,
            Growth::Replace | Growth::RegexpReplace | Growth::Pattern(_) | Growth::Strpos => {
                args.iter().skip(1).any(|value| matches!(value, ColumnarValue::Array(_)))
            }
            _ => true,
        }
    }

    /// What it takes for so many rows of these arguments. Where telling takes long, `stop` is asked meanwhile.
    ///
    /// # Errors
    /// What keeps arguments from being looked at, patterns that are refused, and what `stop` gives.
    pub fn cost(self, args: &[ColumnarValue], rows: usize, stop: &dyn Fn() -> Result<()>) -> Result<Cost> {
        let exactly = |bytes| Cost { bytes, is_at_most: false, steps: Each::Same(0), once: None };
        let at_most = |bytes| Cost { bytes, is_at_most: true, steps: Each::Same(0), once: None };
        let in_steps = |of_row: &dyn Fn(usize) -> u64| Cost {
            bytes: Each::Same(0),
            is_at_most: false,
            steps: Each::of(rows, of_row),
            once: None,
        };
        Ok(match (self, args) {
            (Growth::Repeat, [text, count]) => {
                let (text, count) = (text_bytes(text)?, numbers(count)?);
                exactly(Each::of(rows, |row| text.at(row).saturating_mul(at_least_0(count.at(row)))))
            }
            (Growth::Pad, [text, length, fill @ ..]) => {
                let (text, length) = (text_bytes(text)?, numbers(length)?);
                let widest = |text: &str| text.chars().map(|char| char.len_utf8() as u64).max().unwrap_or(0);
                let fill = fill.first().map_or(Ok(Each::Same(1)), |fill| of_texts(fill, 0, widest))?;
                let padded = |row| at_least_0(length.at(row)).saturating_mul(fill.at(row));
                at_most(Each::of(rows, |row| text.at(row).saturating_add(padded(row))))
            }
            (Growth::Texts, args) => exactly(sum(rows, args, text_bytes)?),
            (Growth::TextsWith, [between, texts @ ..]) => {
                let (between, texts_bytes) = (text_bytes(between)?, sum(rows, texts, text_bytes)?);
                let places = texts.len().saturating_sub(1) as u64;
                at_most(Each::of(rows, |row| {
                    texts_bytes.at(row).saturating_add(between.at(row).saturating_mul(places))
                }))
            }
            (Growth::Encode, [text, ..]) => {
                let text = text_bytes(text)?;
                at_most(Each::of(rows, |row| text.at(row).saturating_mul(2).saturating_add(4)))
            }
            (Growth::Replace, [text, from, to]) => {
                let (text, from, to) = (text_bytes(text)?, text_bytes(from)?, text_bytes(to)?);
                at_most(Each::of(rows, |row| {
                    let places = text.at(row).checked_div(from.at(row)).unwrap_or(0);
                    let more = to.at(row).saturating_sub(from.at(row));
                    text.at(row).saturating_add(places.saturating_mul(more))
                }))
            }
            (Growth::RegexpReplace, [text, pattern, to, flags @ ..]) => {
                let (text, to_bytes) = (text_bytes(text)?, text_bytes(to)?);
                let groups = of_texts(to, 0, |to| to.matches(['$', '\\']).count() as u64)?;
                let is_global = |flags: &str| u64::from(flags.contains('g'));
                let is_global =
                    flags.first().map_or(Ok(Each::Same(0)), |flags| of_texts(flags, 0, is_global))?;
                let made = at_most(Each::of(rows, |row| {
                    let places = is_global.at(row).saturating_mul(text.at(row)).saturating_add(1);
                    let copies = groups.at(row).saturating_add(1).saturating_mul(text.at(row));
                    copies.saturating_add(places.saturating_mul(to_bytes.at(row)))
                }));
                Language::Regexp.cost(made, rows, &text, (pattern, flags.first()), stop)?
            }
            (Growth::RegexpMatch, [text, pattern, flags @ ..]) => {
                let text = text_bytes(text)?;
                let groups = of_texts(pattern, 0, |pattern| 1 + pattern.matches('(').count() as u64)?;
                let made = at_most(Each::of(rows, |row| {
                    text.at(row).saturating_add(16).saturating_mul(groups.at(row))
                }));
                Language::Regexp.cost(made, rows, &text, (pattern, flags.first()), stop)?
            }
            (Growth::Pattern(language), [text, pattern, more @ ..]) => {
                // Behind the place to begin at, if there is one; a number is no group of them either.
                let flags = more.iter().find(|more| more.data_type().is_string());
                language.cost(at_most(Each::Same(0)), rows, &text_bytes(text)?, (pattern, flags), stop)?
            }
            (Growth::ToChar, [_, format]) => at_most(of_texts(format, 0, formatted_bytes)?),
            (Growth::StringToArray, [text, between, ..]) => {
                let (text, between) = (text_bytes(text)?, text_bytes(between)?);
                at_most(Each::of(rows, |row| {
                    let parts = text.at(row) / between.at(row).max(1) + 1;
                    text.at(row).saturating_add(parts.saturating_mul(16))
                }))
            }
            (Growth::ArrayToString, [list, between @ ..]) => {
                let (texts, elements) = (measured(list, shown)?, measured(list, |_| Each::Same(1))?);
                let between = sum(rows, between, text_bytes)?;
                at_most(Each::of(rows, |row| {
                    texts.at(row).saturating_add(elements.at(row).saturating_mul(between.at(row)))
                }))
            }
            (Growth::Range, args) => {
                let elements = range_elements(args, rows)?;
                exactly(Each::of(rows, |row| elements.at(row).saturating_mul(8)))
            }
            (Growth::ArrayRepeat, [element, count]) => {
                let (element, count) = (stored_bytes(element)?, numbers(count)?);
                // It is done with a list of places, of 8 bytes each.
                let each = |row| element.at(row).max(8);
                exactly(Each::of(rows, |row| at_least_0(count.at(row)).saturating_mul(each(row))))
            }
            (Growth::ArrayResize, [list, length, fill @ ..]) => {
                let empty = element_of(&list.data_type()).map_or(8, fixed_bytes).max(8);
                let fill = fill.first().map_or(Ok(Each::Same(empty)), stored_bytes)?;
                let (bytes, elements, length) =
                    (stored_bytes(list)?, element_counts(list)?, numbers(length)?);
                at_most(Each::of(rows, |row| {
                    let more = at_least_0(length.at(row)).saturating_sub(elements.at(row));
                    bytes.at(row).saturating_add(more.saturating_mul(fill.at(row).max(empty)))
                }))
            }
            (Growth::Arrays, args) => exactly(sum(rows, args, stored_bytes)?),
            (Growth::ArraysZip, args) => {
                let counts = args.iter().map(element_counts).collect::<Result<Vec<_>>>()?;
                let empty = |arg: &ColumnarValue| element_of(&arg.data_type()).map_or(1, fixed_bytes).max(1);
                let empty = args.iter().map(empty).fold(0, u64::saturating_add);
                let bytes = sum(rows, args, stored_bytes)?;
                at_most(Each::of(rows, |row| {
                    let longest = counts.iter().map(|count| count.at(row)).max().unwrap_or(0);
                    bytes.at(row).saturating_add(longest.saturating_mul(empty))
                }))
            }
            (Growth::ArrayReplace, [list, _, to, ..]) => {
                let (list_bytes, elements) = (stored_bytes(list)?, element_counts(list)?);
                let to = stored_bytes(to)?;
                at_most(Each::of(rows, |row| {
                    list_bytes.at(row).saturating_add(elements.at(row).saturating_mul(to.at(row)))
                }))
            }
            // With one text to look for in many the library does better.
            (Growth::Strpos, [ColumnarValue::Array(_), ColumnarValue::Scalar(_)]) => in_steps(&|_| 0),
            (Growth::Levenshtein | Growth::Strpos | Growth::Trim, [one, other]) => {
                let (one, other) = (text_bytes(one)?, text_bytes(other)?);
                in_steps(&|row| one.at(row).saturating_mul(other.at(row)))
            }
            (Growth::ArrayHas, [one, other]) => {
                let (one, other) = (element_counts(one)?, element_counts(other)?);
                in_steps(&|row| one.at(row).saturating_mul(other.at(row)))
            }
            // Other numbers of arguments are refused, or mean what is harmless: btrim of one.
            _ => exactly(Each::Same(0)),
        })
    }
}

/// Something for each row.
#[derive(Debug)]
pub(crate) enum Each<T> {
    Same(T),
    Of(Vec<T>),
}

impl<T: Copy> Each<T> {
    pub fn of(rows: usize, of_row: impl Fn(usize) -> T) -> Each<T> {
        Each::Of((0..rows).map(of_row).collect())
    }

    /// Of this row.
    pub fn at(&self, row: usize) -> T {
        match self {
            Each::Same(one) => *one,
            Each::Of(all) => all[row],
        }
    }
}

impl Each<u64> {
    /// Of all rows together.
    pub fn total(&self, rows: usize) -> u64 {
        match self {
            Each::Same(one) => one.saturating_mul(rows as u64),
            Each::Of(all) => all.iter().copied().fold(0, u64::saturating_add),
        }
    }
}

/// Numbers of whole rows, which may be null, of a value.
fn numbers(value: &ColumnarValue) -> Result<Each<Option<i64>>> {
    Ok(match value {
        ColumnarValue::Scalar(scalar) => {
            let number = cast(&scalar.to_array()?, &DataType::Int64)?;
            Each::Same(number.as_primitive::<Int64Type>().iter().next().flatten())
        }
        ColumnarValue::Array(array) => {
            Each::Of(cast(array, &DataType::Int64)?.as_primitive::<Int64Type>().iter().collect())
        }
    })
}

fn at_least_0(number: Option<i64>) -> u64 {
    number.map_or(0, |number| u64::try_from(number).unwrap_or(0))
}

/// What `of_text` says of each text; `of_null` where it is null.
pub(crate) fn of_texts<T: Copy>(
    value: &ColumnarValue,
    of_null: T,
    of_text: impl Fn(&str) -> T,
) -> Result<Each<T>> {
    let of_array = |array: &dyn Array| -> Result<Each<T>> {
        let of_text = |text: Option<&str>| text.map_or(of_null, &of_text);
        Ok(Each::Of(match array.data_type() {
            DataType::Utf8 => array.as_string::<i32>().iter().map(of_text).collect(),
            DataType::LargeUtf8 => array.as_string::<i64>().iter().map(of_text).collect(),
            DataType::Utf8View => array.as_string_view().iter().map(of_text).collect(),
            _ => {
                let texts = cast(array, &DataType::LargeUtf8)?;
                texts.as_string::<i64>().iter().map(of_text).collect()
            }
        }))
    };
    match value {
        ColumnarValue::Array(array) => of_array(array),
        ColumnarValue::Scalar(scalar) => Ok(Each::Same(match scalar.try_as_str() {
            Some(text) => text.map_or(of_null, &of_text),
            None => of_array(&scalar.to_array()?)?.at(0),
        })),
    }
}

/// The sum of what `of_value` says of some values.
fn sum(
    rows: usize,
    values: &[ColumnarValue],
    of_value: impl Fn(&ColumnarValue) -> Result<Each<u64>>,
) -> Result<Each<u64>> {
    let all = values.iter().map(of_value).collect::<Result<Vec<_>>>()?;
    Ok(Each::of(rows, |row| all.iter().map(|each| each.at(row)).fold(0, u64::saturating_add)))
}

/// What `leaf` says of the numbers and texts that values are made of, summed up for each row.
fn measured(value: &ColumnarValue, leaf: Measure) -> Result<Each<u64>> {
    Ok(match value {
        ColumnarValue::Array(array) => measure(array, leaf, 0),
        ColumnarValue::Scalar(scalar) => Each::Same(measure(&scalar.to_array()?, leaf, 0).at(0)),
    })
}

/// The bytes of texts alone.
fn text_bytes(value: &ColumnarValue) -> Result<Each<u64>> {
    if let ColumnarValue::Scalar(scalar) = value
        && let Some(text) = scalar.try_as_str()
    {
        return Ok(Each::Same(text.map_or(0, str::len) as u64));
    }
    measured(value, bytes)
}

/// The bytes of elements of lists, with those that say where each begins.
fn stored_bytes(value: &ColumnarValue) -> Result<Each<u64>> {
    Ok(match value {
        ColumnarValue::Array(array) => measure(array, stored, LIST_BYTES),
        ColumnarValue::Scalar(scalar) => Each::Same(measure(&scalar.to_array()?, stored, LIST_BYTES).at(0)),
    })
}

/// All bytes of an array.
pub(crate) fn array_bytes(array: &ArrayRef) -> u64 {
    measure(array, stored, LIST_BYTES).total(array.len())
}

/// The bytes of a constant, those that each value has not counted.
pub(crate) fn constant_bytes(constant: &ScalarValue) -> u64 {
    let nested: ArrayRef = match constant {
        ScalarValue::List(list) => list.clone(),
        ScalarValue::LargeList(list) => list.clone(),
        ScalarValue::FixedSizeList(list) => list.clone(),
        ScalarValue::Struct(fields) => fields.clone(),
        ScalarValue::Map(map) => map.clone(),
        other => return other.size().saturating_sub(size_of::<ScalarValue>()) as u64,
    };
    array_bytes(&nested)
}

/// What says where a list in a list begins.
const LIST_BYTES: u64 = 8;

type Measure = fn(&dyn Array) -> Each<u64>;

/// Sums up `leaf` for each row, and `list` for each list.
fn measure(array: &ArrayRef, leaf: Measure, list: u64) -> Each<u64> {
    let rows = array.len();
    match array.data_type() {
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            of_lists(lists.value_offsets(), lists.values(), leaf, list)
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            of_lists(lists.value_offsets(), lists.values(), leaf, list)
        }
        DataType::Map(..) => {
            let maps = array.as_map();
            let entries: ArrayRef = Arc::new(maps.entries().clone());
            of_lists(maps.value_offsets(), &entries, leaf, list)
        }
        DataType::FixedSizeList(_, size) => {
            let (lists, size) = (array.as_fixed_size_list(), u64::try_from(*size).unwrap_or(0));
            match measure(lists.values(), leaf, list) {
                Each::Same(one) => Each::Same(one.saturating_mul(size)),
                all => {
                    let elements = |row: usize| row * size as usize..(row + 1) * size as usize;
                    Each::of(rows, |row| {
                        elements(row).map(|element| all.at(element)).fold(0, u64::saturating_add)
                    })
                }
            }
        }
        DataType::Struct(_) => {
            let columns = array.as_struct().columns();
            let all: Vec<Each<u64>> = columns.iter().map(|column| measure(column, leaf, list)).collect();
            Each::of(rows, |row| all.iter().map(|each| each.at(row)).fold(0, u64::saturating_add))
        }
        DataType::Dictionary(..) => {
            let array = array.as_any_dictionary();
            if array.values().is_empty() {
                return Each::Same(0);
            }
            let values = measure(array.values(), leaf, list);
            Each::Of(array.normalized_keys().into_iter().map(|key| values.at(key)).collect())
        }
        _ => leaf(array),
    }
}

fn of_lists<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef, leaf: Measure, list: u64) -> Each<u64> {
    // Values of rows that are not here may lie before and behind.
    let (first, end) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    let elements = measure(&values.slice(first, end - first), leaf, list);
    let of_list = |ends: &[O]| {
        let (from, to) = (ends[0].as_usize() - first, ends[1].as_usize() - first);
        match &elements {
            Each::Same(one) => one.saturating_mul((to - from) as u64),
            Each::Of(all) => all[from..to].iter().copied().fold(0, u64::saturating_add),
        }
        .saturating_add(list)
    };
    Each::Of(offsets.windows(2).map(of_list).collect())
}

/// The lengths that offsets tell of.
fn lengths<O: OffsetSizeTrait>(offsets: &[O]) -> Each<u64> {
    Each::Of(offsets.windows(2).map(|ends| (ends[1] - ends[0]).as_usize() as u64).collect())
}

fn bytes(array: &dyn Array) -> Each<u64> {
    match array.data_type() {
        DataType::Utf8 => lengths(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => lengths(array.as_string::<i64>().value_offsets()),
        DataType::Binary => lengths(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => lengths(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => Each::Of(array.as_string_view().lengths().map(u64::from).collect()),
        DataType::BinaryView => Each::Of(array.as_binary_view().lengths().map(u64::from).collect()),
        // Views of lists, unions and runs: as if all rows were alike.
        kind if kind.is_nested() => {
            Each::Same((array.get_buffer_memory_size() as u64).div_ceil(array.len().max(1) as u64))
        }
        kind => Each::Same(fixed_bytes(kind).max(1)),
    }
}

fn stored(array: &dyn Array) -> Each<u64> {
    let place = match array.data_type() {
        DataType::Utf8 | DataType::Binary => 4,
        DataType::LargeUtf8 | DataType::LargeBinary => 8,
        DataType::Utf8View | DataType::BinaryView => 16,
        _ => return bytes(array),
    };
    let bytes = bytes(array);
    Each::of(array.len(), |row| bytes.at(row).saturating_add(place))
}

/// The bytes of values as text, at most.
fn shown(array: &dyn Array) -> Each<u64> {
    match array.data_type() {
        // 10^308 is written out.
        DataType::Float16 | DataType::Float32 | DataType::Float64 => Each::Same(330),
        kind if kind.is_string() || kind.is_nested() => bytes(array),
        kind if kind.is_binary() => {
            let bytes = bytes(array);
            Each::of(array.len(), |row| bytes.at(row).saturating_mul(2))
        }
        _ => Each::Same(80),
    }
}

/// The bytes of a date in such a format, at most.
fn formatted_bytes(format: &str) -> u64 {
    let count = |what: &str| format.matches(what).count() as u64;
    // What it gives where a duration is formatted, whatever the format.
    let least = 64;
    least + format.len() as u64 + 16 * count("%") + 24 * (count("%c") + count("%+"))
}

fn element_of(kind: &DataType) -> Option<&DataType> {
    match kind {
        DataType::List(element)
        | DataType::LargeList(element)
        | DataType::ListView(element)
        | DataType::LargeListView(element)
        | DataType::FixedSizeList(element, _) => Some(element.data_type()),
        _ => None,
    }
}

/// How many elements each list has, those of lists in it not counted.
fn element_counts(value: &ColumnarValue) -> Result<Each<u64>> {
    let of_array = |array: &ArrayRef| match array.data_type() {
        DataType::List(_) => lengths(array.as_list::<i32>().value_offsets()),
        DataType::LargeList(_) => lengths(array.as_list::<i64>().value_offsets()),
        DataType::FixedSizeList(_, size) => Each::Same(u64::try_from(*size).unwrap_or(0)),
        _ => Each::Same(0),
    };
    Ok(match value {
        ColumnarValue::Array(array) => of_array(array),
        ColumnarValue::Scalar(scalar) => Each::Same(of_array(&scalar.to_array()?).at(0)),
    })
}

/// The bytes that each value of a type has, whatever it is: also null, and where nothing else is known of it.
pub(crate) fn fixed_bytes(kind: &DataType) -> u64 {
    match kind {
        DataType::FixedSizeBinary(size) => u64::try_from(*size).unwrap_or(0),
        DataType::FixedSizeList(element, size) => {
            fixed_bytes(element.data_type()).max(1).saturating_mul(u64::try_from(*size).unwrap_or(0))
        }
        DataType::Struct(fields) => {
            fields.iter().map(|field| fixed_bytes(field.data_type())).fold(0, u64::saturating_add)
        }
        other => other.primitive_width().unwrap_or(0) as u64,
    }
}

/// How many elements range() and generate_series() make. A list that does not end, or not for sure, has 2^64.
fn range_elements(args: &[ColumnarValue], rows: usize) -> Result<Each<u64>> {
    let kind = args.first().map(ColumnarValue::data_type);
    let day_ns = 24 * 3600 * 1_000_000_000;
    match (kind, args) {
        (Some(DataType::Int64), [stop]) => {
            let stop = numbers(stop)?;
            Ok(Each::of(rows, |row| at_least_0(stop.at(row)).saturating_add(1)))
        }
        (Some(DataType::Int64), [start, stop, step @ ..]) => {
            let (start, stop) = (numbers(start)?, numbers(stop)?);
            let step = step.first().map_or(Ok(Each::Same(Some(1))), numbers)?;
            Ok(Each::of(rows, |row| {
                let all = start.at(row).zip(stop.at(row)).zip(step.at(row));
                all.map_or(0, |((start, stop), step)| elements(start.into(), stop.into(), step.into()))
            }))
        }
        (Some(DataType::Date32 | DataType::Date64), [start, stop, step]) => {
            let days = |value: &ColumnarValue| {
                numbers(&value.cast_to(&DataType::Date32, None)?.cast_to(&DataType::Int32, None)?)
            };
            let (start, stop, steps) = (days(start)?, days(stop)?, intervals(step)?);
            let step = |step: IntervalMonthDayNano| {
                let days = i128::from(step.nanoseconds).div_euclid(day_ns);
                smallest_step(step, 28, 1, days)
            };
            Ok(Each::of(rows, |row| {
                let all = start.at(row).zip(stop.at(row)).zip(steps.at(row));
                all.map_or(0, |((start, stop), by)| elements(start.into(), stop.into(), step(by)))
            }))
        }
        (Some(DataType::Timestamp(..)), [start, stop, step]) => {
            let ns = |value: &ColumnarValue| -> i128 {
                match value.data_type() {
                    DataType::Timestamp(TimeUnit::Second, _) => 1_000_000_000,
                    DataType::Timestamp(TimeUnit::Millisecond, _) => 1_000_000,
                    DataType::Timestamp(TimeUnit::Microsecond, _) => 1_000,
                    _ => 1,
                }
            };
            let (start_ns, stop_ns) = (ns(start), ns(stop));
            let (start, stop, steps) = (numbers(start)?, numbers(stop)?, intervals(step)?);
            // A day may have 23 hours.
            let step = |step: IntervalMonthDayNano| {
                let hours_ns = day_ns / 24;
                smallest_step(step, 27 * day_ns, 23 * hours_ns, step.nanoseconds.into())
            };
            Ok(Each::of(rows, |row| {
                let all = start.at(row).zip(stop.at(row)).zip(steps.at(row));
                all.map_or(0, |((start, stop), by)| {
                    elements(i128::from(start) * start_ns, i128::from(stop) * stop_ns, step(by))
                })
            }))
        }
        _ => Ok(Each::Same(0)),
    }
}

/// The least by which an interval goes on, with such months and days; 0 where its parts go against each other.
fn smallest_step(step: IntervalMonthDayNano, month: i128, day: i128, rest: i128) -> i128 {
    let parts = [i128::from(step.months) * month, i128::from(step.days) * day, rest];
    if parts.iter().any(|part| *part < 0) && parts.iter().any(|part| *part > 0) {
        return 0;
    }
    parts.iter().sum()
}

/// The elements from `start` on to `stop`.
fn elements(start: i128, stop: i128, step: i128) -> u64 {
    let way = if step < 0 { start - stop } else { stop - start };
    if way < 0 {
        return 0;
    }
    match step {
        0 => u64::MAX,
        _ => u64::try_from(way / step.abs() + 1).unwrap_or(u64::MAX),
    }
}

fn intervals(value: &ColumnarValue) -> Result<Each<Option<IntervalMonthDayNano>>> {
    let kind = DataType::Interval(IntervalUnit::MonthDayNano);
    let of_array = |array: &ArrayRef| -> Result<Vec<_>> {
        Ok(cast(array, &kind)?.as_primitive::<IntervalMonthDayNanoType>().iter().collect())
    };
    Ok(match value {
        ColumnarValue::Array(array) => Each::Of(of_array(array)?),
        ColumnarValue::Scalar(scalar) => {
            Each::Same(of_array(&scalar.to_array()?)?.first().copied().flatten())
        }
    })
}
