/* Payload objects: where their bytes lie, and of which type and shape they are. */
#include "py_ring.h"

#include <string.h>

/* ---- DLPack 1.x, declared here: no header of an array library is needed to build ------------ *
 * See: DLPack's "C exchange API" (dlpack.h 1.3), https://dmlc.github.io/dlpack/latest/ */

enum { DLPACK_CPU = 1, DLPACK_CUDA_HOST = 3, DLPACK_COMPLEX = 5 };

typedef struct {
    void *data;
    struct {
        int32_t type;
        int32_t id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} uc_dlpack_tensor_t;

typedef struct uc_dlpack_api {
    uint32_t version_major;
    uint32_t version_minor;
    struct uc_dlpack_api *previous;
    void *allocate;
    void *managed_from_object;
    void *managed_to_object;
    int (*tensor_from_object)(void *object, uc_dlpack_tensor_t *ret_tensor); /* borrowed */
    void *current_stream;
} uc_dlpack_api_t;
_Static_assert(sizeof(uc_dlpack_tensor_t) == 48, "DLTensor");
_Static_assert(offsetof(uc_dlpack_api_t, tensor_from_object) == 40, "DLPackExchangeAPI");

static const uc_dlpack_api_t *load_api(uc_state_t *state, PyObject *type)
{
    PyObject *capsule = PyObject_GetAttr(type, state->exchange_name);
    if (capsule == NULL) {
        PyErr_Clear();
        return NULL;
    }
    const uc_dlpack_api_t *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule); /* the table lives as long as the process, says the standard */
    if (api == NULL)
        PyErr_Clear();
    for (int step = 0; api != NULL && api->version_major != 1 && step < 8; step++)
        api = api->previous;
    if (api != NULL && (api->version_major != 1 || api->tensor_from_object == NULL))
        api = NULL;
    return api;
}

/* Looks the exchange table of a type up once; the cache holds the type, so that its address cannot
 * come back as another type's. A type without table is remembered too. */
static const uc_dlpack_api_t *find_api(uc_state_t *state, PyObject *type)
{
    for (uint32_t i = 0; i < UC_DLPACK_TYPES; i++)
        if (state->dlpack_types[i] == type)
            return state->dlpack_apis[i];
    const uc_dlpack_api_t *api = load_api(state, type);
    uint32_t index = state->dlpack_next++ % UC_DLPACK_TYPES;
    PyObject *previous = state->dlpack_types[index];
    state->dlpack_types[index] = Py_NewRef(type);
    state->dlpack_apis[index] = api;
    Py_XDECREF(previous);
    return api;
}

/* An attribute or the answer of a method without arguments, as a truth value; -1 with an error. */
static int ask(PyObject *object, const char *name, bool is_method)
{
    PyObject *answer = PyObject_GetAttrString(object, name);
    if (answer != NULL && is_method) {
        PyObject *method = answer;
        answer = PyObject_CallNoArgs(method);
        Py_DECREF(method);
    }
    if (answer == NULL)
        return -1;
    int truth = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return truth;
}

/* The bytes of a tensor are not its value when it is lazily conjugated (complex) or lazily negated
 * (the imaginary part of a conjugated one, contiguous only with one element). */
static bool is_lazy(PyObject *object, const uc_dlpack_tensor_t *tensor, uint64_t elements)
{
    int lazy = 0;
    if (tensor->dtype.code == DLPACK_COMPLEX)
        lazy = ask(object, "is_conj", true);
    if (lazy == 0 && elements <= 1)
        lazy = ask(object, "is_neg", true);
    if (lazy < 0)
        PyErr_Clear();
    return lazy != 0;
}

/* A tensor of a graph would come back as one without: the caller decides. */
static bool needs_gradient(const uc_state_t *state, PyObject *object)
{
    PyObject *answer = PyObject_GetAttr(object, state->gradient_name);
    int truth = answer == NULL ? 0 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (answer == NULL || truth < 0)
        PyErr_Clear();
    return truth != 0;
}

static int open_dlpack(uc_state_t *state, PyObject *object, uc_source_t *source)
{
    const uc_dlpack_api_t *api = find_api(state, (PyObject *)Py_TYPE(object));
    uc_dlpack_tensor_t tensor;
    if (api == NULL)
        return UC_UNSUPPORTED;
    memset(&tensor, 0, sizeof tensor);
    if (api->tensor_from_object(object, &tensor) != 0) {
        PyErr_Clear(); /* sparse, or of a type that DLPack lacks: the caller has other ways */
        return UC_UNSUPPORTED;
    }
    if ((tensor.device.type != DLPACK_CPU && tensor.device.type != DLPACK_CUDA_HOST)
        || tensor.dtype.lanes != 1 || tensor.dtype.bits < 8 || tensor.dtype.bits % 8 != 0
        || tensor.ndim < 0 || tensor.ndim > (int32_t)UC_NDIM_MAX)
        return UC_UNSUPPORTED;
    uint64_t elements = 1;
    for (int32_t i = tensor.ndim - 1; i >= 0; i--) {
        int64_t size = tensor.shape[i];
        if (size < 0 || size > UINT32_MAX
            || (size > 1 && tensor.strides != NULL && tensor.strides[i] != (int64_t)elements))
            return UC_UNSUPPORTED;
        source->shape[i] = (uint32_t)size;
        elements *= (uint64_t)size;
        if (elements > UINT32_MAX)
            return UC_UNSUPPORTED;
    }
    if (elements > 0 && tensor.data == NULL)
        return UC_UNSUPPORTED; /* a wrapper without storage */
    if (is_lazy(object, &tensor, elements) || needs_gradient(state, object))
        return UC_UNSUPPORTED;
    source->ndim = (uint8_t)tensor.ndim;
    source->dtype_code = tensor.dtype.code;
    source->dtype_bits = tensor.dtype.bits;
    source->length = elements * (tensor.dtype.bits / 8u);
    source->bytes = (const uint8_t *)tensor.data + tensor.byte_offset;
    return UC_OK;
}

/* ---- the buffer protocol -------------------------------------------------------------------- */

/* DLPack code of a native one-character format, or of 'Z' and a float (numpy's complex); -1 else.
 * Byte-swapped, structured and sized formats have more characters. */
static int code_of_format(const char *format)
{
    if (format == NULL)
        return 1; /* the protocol's default is 'B' */
    if (format[0] == '@')
        format++;
    if (format[0] == 'Z' && (format[1] == 'f' || format[1] == 'd') && format[2] == '\0')
        return DLPACK_COMPLEX;
    if (format[0] == '\0' || format[1] != '\0')
        return -1;
    switch (format[0]) {
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
        return 0;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
        return 1;
    case 'e':
    case 'f':
    case 'd':
        return 2;
    case '?':
        return 6;
    default:
        return -1;
    }
}

static int open_buffer(PyObject *object, uc_source_t *source)
{
    if (PyObject_GetBuffer(object, &source->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
        if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError)
            && !PyErr_ExceptionMatches(PyExc_TypeError))
            return -1;
        PyErr_Clear(); /* not contiguous, or of a type without a format */
        return UC_UNSUPPORTED;
    }
    const Py_buffer *view = &source->view;
    int code = code_of_format(view->format);
    bool is_supported =
        code >= 0 && view->ndim <= (int)UC_NDIM_MAX && view->itemsize > 0 && view->itemsize <= 16;
    for (int i = 0; is_supported && i < view->ndim; i++) {
        is_supported = view->shape[i] >= 0 && (uint64_t)view->shape[i] <= UINT32_MAX;
        source->shape[i] = (uint32_t)view->shape[i];
    }
    if (!is_supported) {
        PyBuffer_Release(&source->view);
        return UC_UNSUPPORTED;
    }
    source->has_view = true;
    source->ndim = (uint8_t)view->ndim;
    source->dtype_code = (uint8_t)code;
    source->dtype_bits = (uint8_t)(view->itemsize * 8);
    source->length = (uint64_t)view->len;
    source->bytes = view->buf;
    return UC_OK;
}

/* ---- arrays of one registered type ------------------------------------------------------------ *
 * The buffer protocol makes a format string at each export, which costs as much as a quarter of the
 * copy. The first fields of an array object are numpy's public ABI (PyArrayObject_fields in
 * ndarraytypes.h: every extension built against numpy 1 or 2 has these offsets compiled in), and
 * a dtype without metadata, in native order, is one object per process. Registration compares what
 * is read here with what the buffer protocol says of the same array, and is refused if they differ.
 * See: https://numpy.org/doc/stable/reference/c-api/types-and-structures.html */

typedef struct {
    PyObject_HEAD uint8_t *data;
    int dimension_count;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *dtype;
    int flags;
} uc_array_t;

enum { ARRAY_C_CONTIGUOUS = 1 };

bool uc_source_peek(const uc_state_t *state, PyObject *object, uc_source_t *ret_source)
{
    if ((PyObject *)Py_TYPE(object) != state->array_type)
        return false;
    const uc_array_t *array = (const uc_array_t *)object;
    uint32_t index = 0;
    while (index < state->array_dtype_count && state->array_dtypes[index].dtype != array->dtype)
        index++;
    if (index == state->array_dtype_count || (array->flags & ARRAY_C_CONTIGUOUS) == 0
        || array->dimension_count < 0 || array->dimension_count > (int)UC_NDIM_MAX)
        return false;
    const uc_array_dtype_t *dtype = &state->array_dtypes[index];
    uint64_t length = dtype->bits / 8u;
    memset(ret_source->shape, 0, sizeof ret_source->shape);
    for (int i = 0; i < array->dimension_count; i++) {
        if (array->shape[i] < 0 || (uint64_t)array->shape[i] > UINT32_MAX)
            return false;
        ret_source->shape[i] = (uint32_t)array->shape[i];
        length *= (uint64_t)array->shape[i];
        if (length > UINT32_MAX)
            return false;
    }
    ret_source->has_view = false;
    ret_source->ndim = (uint8_t)array->dimension_count;
    ret_source->dtype_code = dtype->code;
    ret_source->dtype_bits = dtype->bits;
    ret_source->length = length;
    ret_source->bytes = array->data;
    return true;
}

static void forget_arrays(uc_state_t *state)
{
    while (state->array_dtype_count > 0)
        Py_CLEAR(state->array_dtypes[--state->array_dtype_count].dtype);
    Py_CLEAR(state->array_type);
}

/* Whether an object is at least as long as the fields read here. -1 with an error set. */
static int is_long_enough(PyObject *sample)
{
    PyObject *size = PyObject_GetAttrString((PyObject *)Py_TYPE(sample), "__basicsize__");
    Py_ssize_t bytes = size == NULL ? -1 : PyLong_AsSsize_t(size);
    Py_XDECREF(size);
    return PyErr_Occurred() ? -1 : bytes >= (Py_ssize_t)sizeof(uc_array_t);
}

/* Whether what stands in a sample is what the buffer protocol and its attribute say. Pointers are
 * followed last. */
static bool agrees(const uc_state_t *state, PyObject *sample, PyObject *dtype,
                   const uc_source_t *opened)
{
    const uc_array_t *array = (const uc_array_t *)sample;
    uc_source_t peeked;
    return array->data == opened->bytes && array->dtype == dtype
           && array->dimension_count == (int)opened->ndim && uc_source_peek(state, sample, &peeked)
           && peeked.length == opened->length
           && memcmp(peeked.shape, opened->shape, sizeof peeked.shape) == 0;
}

/* Learns a sample's dtype from the buffer protocol: 1, 0 if it is no such array, -1 with an error. */
static int learn_dtype(uc_state_t *state, PyObject *sample)
{
    int status = is_long_enough(sample);
    PyObject *dtype = status == 1 ? PyObject_GetAttrString(sample, "dtype") : NULL;
    uc_source_t source;
    if (status == 1 && dtype != NULL && state->array_dtype_count < UC_ARRAY_DTYPES)
        status = uc_source_open(state, sample, &source) == UC_OK;
    else
        status = 0;
    if (status == 1) {
        uc_array_dtype_t learnt = {Py_NewRef(dtype), source.dtype_code, source.dtype_bits};
        state->array_dtypes[state->array_dtype_count++] = learnt;
        status = agrees(state, sample, dtype, &source);
        uc_source_close(&source);
    }
    Py_XDECREF(dtype);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return PyErr_Occurred() ? -1 : status;
}

const char uc_register_arrays_doc[] = PyDoc_STR(
    "register_arrays($module, samples, /)\n--\n\n"
    "Lets `publish` read arrays of one type, numpy's, without an export of their buffer.\n\n"
    "`samples` is a list of at most 16 arrays of exactly that type, one for each dtype. Returns\n"
    "whether what stands in the objects is what the buffer protocol says of each; where it is "
    "not,\n"
    "arrays are read through the protocol, as before. Once per process, before the first record.");

PyObject *uc_py_register_arrays(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    uc_state_t *state = PyModule_GetState(module);
    if (nargs != 1 || !PyList_Check(args[0]) || PyList_Size(args[0]) < 1
        || PyList_Size(args[0]) > UC_ARRAY_DTYPES) {
        PyErr_SetString(PyExc_TypeError, "register_arrays() takes a list of 1 to 16 arrays");
        return NULL;
    }
    forget_arrays(state);
    state->array_type = Py_NewRef((PyObject *)Py_TYPE(PyList_GetItem(args[0], 0)));
    int status = 1;
    for (Py_ssize_t i = 0; status == 1 && i < PyList_Size(args[0]); i++) {
        PyObject *sample = Py_NewRef(PyList_GetItem(args[0], i));
        status = learn_dtype(state, sample);
        Py_DECREF(sample);
    }
    if (status != 1)
        forget_arrays(state);
    return status < 0 ? NULL : PyBool_FromLong(status);
}

int uc_source_open(uc_state_t *state, PyObject *object, uc_source_t *ret_source)
{
    ret_source->has_view = false;
    memset(ret_source->shape, 0, sizeof ret_source->shape);
    if (PyObject_CheckBuffer(object))
        return open_buffer(object, ret_source);
    return open_dlpack(state, object, ret_source);
}

void uc_source_close(uc_source_t *source)
{
    if (source->has_view)
        PyBuffer_Release(&source->view);
}
