//! The one way out for columns: a [`Table`] becomes an Arrow C stream.
//!
//! Numeric columns move into Arrow buffers: the consumer reads the very bytes that the engine wrote.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Float64Type, UInt8Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, Float64Array, LargeStringArray, RecordBatch,
    RecordBatchIterator, StringArray, UInt8Array, UInt32Array, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, ffi::FFI_ArrowSchema};
use planner_core::table::{Column, Data, Table};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

/// Columns of results; read it with `polars.DataFrame(frame)`.
///
/// Any consumer of `__arrow_c_stream__` will do (Polars, DuckDB, pandas, pyarrow). Each call
/// exports a fresh stream over the same buffers, so a frame can be read many times.
#[pyclass(frozen, module = "meshplan._core")]
#[derive(Debug)]
pub struct Frame {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Frame {
    /// One batch of one table, moved.
    pub fn new(table: Table) -> PyResult<Self> {
        Self::from_tables(vec![table])
    }

    /// One batch per table; all tables declare the same columns. At least one table.
    pub fn from_tables(tables: Vec<Table>) -> PyResult<Self> {
        let first = tables
            .first()
            .ok_or_else(|| PyRuntimeError::new_err("a frame needs at least one table"))?;
        let schema = Arc::new(schema_of(first));
        let batches = tables
            .into_iter()
            .map(|table| {
                let arrays = table.data.into_iter().map(into_array).collect();
                RecordBatch::try_new(Arc::clone(&schema), arrays)
            })
            .collect::<Result<_, _>>()
            .map_err(arrow_error)?;
        Ok(Self { schema, batches })
    }
}

#[pymethods]
impl Frame {
    /// Export an Arrow C stream. `requested_schema` is accepted and not acted on, as the protocol
    /// allows.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = self.batches.clone().into_iter().map(Ok);
        let reader = RecordBatchIterator::new(batches, Arc::clone(&self.schema));
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// Export the schema alone; units and docs of columns are field metadata.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref()).map_err(arrow_error)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// Rows, over all batches.
    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    fn __repr__(&self) -> String {
        format!(
            "Frame({} rows × {} columns)",
            self.__len__(),
            self.schema.fields().len()
        )
    }

    /// Names of the columns, in order.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        let fields = self.schema.fields().iter();
        fields.map(|field| field.name().clone()).collect()
    }

    /// Addresses of the numeric buffers of the first batch, by column: the proof that nothing is
    /// copied on the way to a consumer.
    fn _buffer_addresses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let addresses = PyDict::new(py);
        let Some(batch) = self.batches.first() else {
            return Ok(addresses);
        };
        for (field, array) in self.schema.fields().iter().zip(batch.columns()) {
            if let Some(address) = address_of(array) {
                addresses.set_item(field.name(), address)?;
            }
        }
        Ok(addresses)
    }
}

fn arrow_error(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

fn schema_of(table: &Table) -> Schema {
    let fields = table.columns.iter().zip(&table.data);
    Schema::new(
        fields
            .map(|(column, data)| field_of(column, data))
            .collect::<Vec<_>>(),
    )
}

fn field_of(column: &Column, data: &Data) -> Field {
    let metadata = [("unit", column.unit), ("doc", column.doc)]
        .map(|(key, text)| (key.to_owned(), text.to_owned()));
    Field::new(column.name, type_of(data), false).with_metadata(metadata.into())
}

fn type_of(data: &Data) -> DataType {
    match data {
        Data::U32(_) => DataType::UInt32,
        Data::U64(_) => DataType::UInt64,
        Data::F64(_) => DataType::Float64,
        Data::Bool(_) => DataType::Boolean,
        Data::Name { .. } => {
            DataType::Dictionary(Box::new(DataType::UInt8), Box::new(DataType::Utf8))
        }
        Data::Text(_) => DataType::LargeUtf8,
    }
}

/// Numbers and codes are moved; switches are packed to bits and texts are joined.
fn into_array(data: Data) -> ArrayRef {
    match data {
        Data::U32(v) => Arc::new(UInt32Array::from(v)),
        Data::U64(v) => Arc::new(UInt64Array::from(v)),
        Data::F64(v) => Arc::new(Float64Array::from(v)),
        Data::Bool(v) => Arc::new(BooleanArray::from(v)),
        Data::Name { codes, names } => Arc::new(DictionaryArray::<UInt8Type>::new(
            UInt8Array::from(codes),
            Arc::new(StringArray::from_iter_values(names)),
        )),
        Data::Text(v) => Arc::new(LargeStringArray::from_iter_values(v)),
    }
}

fn address_of(array: &ArrayRef) -> Option<usize> {
    Some(match array.data_type() {
        DataType::UInt32 => array.as_primitive::<UInt32Type>().values().as_ptr() as usize,
        DataType::UInt64 => array.as_primitive::<UInt64Type>().values().as_ptr() as usize,
        DataType::Float64 => array.as_primitive::<Float64Type>().values().as_ptr() as usize,
        _ => return None,
    })
}
