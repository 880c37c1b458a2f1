/* Messages of ZMTP without encryption, all of one read in one call: an optional helper of broker/net/zmtp/helpers.py.
 *
 * Plain C: no header of Python is needed to build it. It makes Python's objects by functions of the stable ABI, which
 * are declared here, and are those of the process that loads it. ctypes calls `elkobroker_framing` once, for the two
 * functions below; they are ordinary builtin functions then, which hold the GIL.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct object Object;
typedef ptrdiff_t Size;
typedef Object *(*Function)(Object *self, Object *const *arguments, Size count);

/* PyMethodDef. */
struct method {
    const char *name;
    Function function;
    int flags;
    const char *text;
};

extern Object *PyCFunction_NewEx(struct method *, Object *self, Object *module);
extern Object *Py_BuildValue(const char *, ...);
extern Object *PyBytes_FromStringAndSize(const char *, Size);
extern Object *PyBytes_FromObject(Object *);
extern int PyBytes_AsStringAndSize(Object *, char **, Size *);
extern Object *PyList_New(Size);
extern int PyList_SetItem(Object *, Size, Object *);
extern int PyList_Append(Object *, Object *);
extern Size PyLong_AsSsize_t(Object *);
extern Size PySequence_Size(Object *);
extern Object *PySequence_GetItem(Object *, Size);
extern Object *PyErr_Occurred(void);
extern void PyErr_Clear(void);
extern void PyErr_SetString(Object *, const char *);
extern Object *PyExc_TypeError;
extern void Py_DecRef(Object *);

enum { FASTCALL = 0x80, MORE = 1, LONG = 2, SHORT = 256, HEADER = 2, LONG_HEADER = 9, BATCH = 1024 };

struct frame {
    const unsigned char *body;
    uint64_t size;
    int more;
};

/* Reads the header of the frame at `at`. Returns 0 unless the whole frame is there, and is no command. */
static int read_frame(const unsigned char *at, const unsigned char *end, struct frame *frame) {
    if (end - at < HEADER || *at > (MORE | LONG)) return 0;
    frame->more = *at & MORE;
    if (*at & LONG) {
        if (end - at < LONG_HEADER) return 0;
        frame->size = 0;
        for (int i = 1; i < LONG_HEADER; i++) frame->size = frame->size << 8 | at[i];
        frame->body = at + LONG_HEADER;
    } else {
        frame->size = at[1];
        frame->body = at + HEADER;
    }
    return frame->size <= (uint64_t)(end - frame->body);
}

/* split(data, position, easy, longest) -> (messages, position)
 *
 * Returns the messages in data from a position on, at which one begins, as lists of their frames, and the position after
 * them. Stops after some BATCH frames, and before a message that is not complete, is a command, is invalid, has a frame
 * of more than `longest` bytes, more than BATCH frames, or more than `easy` octets, each header counted as two: the
 * caller looks at that one. */
static Object *split(Object *self, Object *const *arguments, Size count) {
    char *data;
    Size size;
    (void)self;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "split takes four arguments");
        return NULL;
    }
    Size position = PyLong_AsSsize_t(arguments[1]), easy = PyLong_AsSsize_t(arguments[2]);
    Size longest = PyLong_AsSsize_t(arguments[3]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(arguments[0], &data, &size)) return NULL;
    Object *messages = PyList_New(0);
    if (messages == NULL) return NULL;
    if (position < 0 || position > size) position = size;
    const unsigned char *at = (const unsigned char *)data + position, *end = (const unsigned char *)data + size;
    for (Size split = 0; split < BATCH;) {
        struct frame frame = {at, 0, 1};
        const unsigned char *next = at;
        Size frames = 0;
        uint64_t octets = 0;
        while (frame.more) {
            if (!read_frame(next, end, &frame) || frame.size > (uint64_t)longest) goto done;
            octets += HEADER + frame.size;
            if (octets > (uint64_t)easy) goto done;
            next = frame.body + frame.size;
            if (++frames > BATCH) goto done;
        }
        Object *message = PyList_New(frames);
        if (message == NULL) goto failed;
        for (Size index = 0; index < frames; index++) {
            read_frame(at, end, &frame);
            Object *body = PyBytes_FromStringAndSize((const char *)frame.body, (Size)frame.size);
            if (body == NULL || PyList_SetItem(message, index, body)) {
                Py_DecRef(message);
                goto failed;
            }
            at = frame.body + frame.size;
        }
        int kept = PyList_Append(messages, message);
        Py_DecRef(message);
        if (kept) goto failed;
        split += frames;
    }
done:
    return Py_BuildValue("(Nn)", messages, (Size)(at - (const unsigned char *)data));
failed:
    Py_DecRef(messages);
    return NULL;
}

/* join(frames) -> bytes
 *
 * Returns the octets of one message of at least one frame. */
static Object *join(Object *self, Object *const *arguments, Size count) {
    (void)self;
    Size frames = count == 1 ? PySequence_Size(arguments[0]) : 0;
    if (frames < 1) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "join takes one argument, a sequence of frames");
        return NULL;
    }
    Object *held[16], *list = NULL, *joined = NULL;
    Size total = 0, taken = 0;
    if (frames > 16 && (list = PyList_New(frames)) == NULL) return NULL;
    for (; taken < frames; taken++) {
        Object *frame = PySequence_GetItem(arguments[0], taken);
        char *body;
        Size size;
        if (frame == NULL) goto done;
        if (PyBytes_AsStringAndSize(frame, &body, &size)) {
            /* A view of memory, for example. */
            PyErr_Clear();
            Object *copy = PyBytes_FromObject(frame);
            Py_DecRef(frame);
            if (copy == NULL) goto done;
            frame = copy;
            PyBytes_AsStringAndSize(frame, &body, &size);
        }
        total += (size < SHORT ? HEADER : LONG_HEADER) + size;
        if (list == NULL) held[taken] = frame;
        else if (PyList_SetItem(list, taken, frame)) goto done;
    }
    joined = PyBytes_FromStringAndSize(NULL, total);
    if (joined == NULL) goto done;
    char *start;
    PyBytes_AsStringAndSize(joined, &start, &total);
    unsigned char *out = (unsigned char *)start;
    for (Size index = 0; index < frames; index++) {
        Object *frame = list == NULL ? held[index] : PySequence_GetItem(list, index);
        char *body;
        Size size;
        PyBytes_AsStringAndSize(frame, &body, &size);
        unsigned char more = index + 1 < frames ? MORE : 0;
        if (size < SHORT) {
            *out++ = more;
            *out++ = (unsigned char)size;
        } else {
            *out++ = more | LONG;
            for (int shift = 56; shift >= 0; shift -= 8) *out++ = (unsigned char)((uint64_t)size >> shift);
        }
        memcpy(out, body, (size_t)size);
        out += size;
        if (list != NULL) Py_DecRef(frame);
    }
done:
    if (list != NULL) Py_DecRef(list);
    else while (taken > 0) Py_DecRef(held[--taken]);
    return joined;
}

static struct method SPLIT = {"split", split, FASTCALL, NULL}, JOIN = {"join", join, FASTCALL, NULL};

/* Returns the two functions. */
Object *elkobroker_framing(void) {
    Object *first = PyCFunction_NewEx(&SPLIT, NULL, NULL), *second = PyCFunction_NewEx(&JOIN, NULL, NULL);
    if (first == NULL || second == NULL) return NULL;
    return Py_BuildValue("(NN)", first, second);
}
