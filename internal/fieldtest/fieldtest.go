// Package fieldtest finds, for tests, the field of a CRI request that an error names.
package fieldtest

import (
	"regexp"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// named is a path such as config.mounts[2].host_path at the beginning of a message or
// of what an error wraps.
var named = regexp.MustCompile(`(?:^|: )([A-Za-z_]+(?:\[(?:[0-9]+|"[^"]*")\])?(?:\.[A-Za-z_]+(?:\[(?:[0-9]+|"[^"]*")\])?)*)(?:[: ]|$)`)

// Named returns the first path in a message that a request of CRI has, "" for none.
func Named(message string) string {
	for {
		found := named.FindStringSubmatchIndex(message)
		if found == nil {
			return ""
		}
		if path := message[found[2]:found[3]]; exists(path) {
			return path
		}
		message = message[found[3]:]
	}
}

// exists reports whether any request has a field at path.
func exists(path string) bool {
	services := runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			if has(methods.Get(j).Input(), segments(path)) {
				return true
			}
		}
	}
	return false
}

// segments splits at the dots outside of brackets: keys of maps have their own.
func segments(path string) []string {
	depth := 0
	return strings.FieldsFunc(path, func(r rune) bool {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		}
		return r == '.' && depth == 0
	})
}

func has(message protoreflect.MessageDescriptor, path []string) bool {
	name, key, indexed := strings.Cut(path[0], "[")
	field := message.Fields().ByName(protoreflect.Name(name))
	switch {
	case field == nil:
		return false
	case indexed && field.IsMap() != strings.HasPrefix(key, `"`), indexed && !field.IsMap() && !field.IsList():
		return false
	case len(path) == 1:
		return true
	case field.Message() == nil || field.IsMap() || field.IsList() && !indexed:
		return false
	}
	return has(field.Message(), path[1:])
}
