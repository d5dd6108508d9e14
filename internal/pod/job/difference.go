package job

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Difference names the first field in which two messages of one type differ, as
// a path ("config.linux.cgroup_parent"), or returns "" when there is none.
// Fields that this version does not know are not compared: they do not survive
// in records, so they cannot distinguish a retry from another request.
func Difference(a, b proto.Message) string {
	if proto.Equal(a, b) {
		return ""
	}
	return differingMessage(a.ProtoReflect(), b.ProtoReflect())
}

func differingMessage(a, b protoreflect.Message) string {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		inner, differ := differingField(field, a, b)
		switch {
		case !differ:
		case inner == "":
			return string(field.Name())
		case inner[0] == '[':
			return string(field.Name()) + inner
		default:
			return string(field.Name()) + "." + inner
		}
	}
	return ""
}

// differingField returns where inside the field the difference is.
func differingField(field protoreflect.FieldDescriptor, a, b protoreflect.Message) (inner string, differ bool) {
	if a.Has(field) != b.Has(field) {
		return "", true
	}
	va, vb := a.Get(field), b.Get(field)
	switch {
	case field.IsMap():
		return differingMap(va.Map(), vb.Map())
	case field.IsList():
		return differingList(field, va.List(), vb.List())
	case field.Message() != nil:
		inner = differingMessage(va.Message(), vb.Message())
		return inner, inner != ""
	default:
		return "", !va.Equal(vb)
	}
}

func differingList(field protoreflect.FieldDescriptor, a, b protoreflect.List) (string, bool) {
	if a.Len() != b.Len() {
		return "", true
	}
	for i := range a.Len() {
		if field.Message() == nil {
			if !a.Get(i).Equal(b.Get(i)) {
				return fmt.Sprintf("[%d]", i), true
			}
			continue
		}
		if inner := differingMessage(a.Get(i).Message(), b.Get(i).Message()); inner != "" {
			return fmt.Sprintf("[%d].%s", i, inner), true
		}
	}
	return "", false
}

// differingMap compares maps with plain values; CRI has no others.
func differingMap(a, b protoreflect.Map) (string, bool) {
	var key string
	differ := false
	note := func(k protoreflect.MapKey) {
		if name := k.String(); !differ || name < key {
			key, differ = name, true
		}
	}
	a.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if !b.Has(k) || !b.Get(k).Equal(v) {
			note(k)
		}
		return true
	})
	b.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		if !a.Has(k) {
			note(k)
		}
		return true
	})
	return fmt.Sprintf("[%q]", key), differ
}
