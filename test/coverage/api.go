package main

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// notLinux is the name of the fields that are for another system.
const notLinux = "windows"

// calls are the names of all calls of both services, which are in the messages' file.
func calls() []string {
	var names []string
	services := (&runtimeapi.PodSandboxConfig{}).ProtoReflect().Descriptor().ParentFile().Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			names = append(names, string(methods.Get(j).Name()))
		}
	}
	return names
}

// fieldsOf returns the paths of all fields below a message that hold a value: elements of lists
// have no index, and a map is one field.
func fieldsOf(message proto.Message) []string {
	return fieldsBelow("", message.ProtoReflect().Descriptor())
}

func fieldsBelow(path string, message protoreflect.MessageDescriptor) []string {
	var paths []string
	fields := message.Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch name := path + string(field.Name()); {
		case field.Name() == notLinux:
		case field.Message() == nil || field.IsMap() || isWrapper(field.Message()):
			paths = append(paths, name)
		default:
			paths = append(paths, fieldsBelow(name+".", field.Message())...)
		}
	}
	return paths
}

// isWrapper reports whether a message stands for one value which may be absent.
func isWrapper(message protoreflect.MessageDescriptor) bool {
	return message.Fields().Len() == 1 && strings.HasSuffix(string(message.Name()), "Value")
}

// expand turns "a.{b,c.{d,e}}" into a.b, a.c.d and a.c.e.
func expand(pattern string) ([]string, error) {
	open := strings.IndexByte(pattern, '{')
	if open < 0 {
		if strings.ContainsAny(pattern, "},") {
			return nil, fmt.Errorf("%q has a brace or a comma too many", pattern)
		}
		return []string{pattern}, nil
	}
	alternatives, rest, err := splitBraces(pattern[open:])
	if err != nil {
		return nil, fmt.Errorf("%q: %w", pattern, err)
	}
	var all []string
	for _, alternative := range alternatives {
		expanded, err := expand(pattern[:open] + alternative + rest)
		if err != nil {
			return nil, err
		}
		all = append(all, expanded...)
	}
	return all, nil
}

// splitBraces reads "{x,y}rest".
func splitBraces(text string) (alternatives []string, rest string, err error) {
	depth, from := 0, 1
	for i, r := range text {
		switch {
		case r == '{':
			depth++
		case r == ',' && depth == 1:
			alternatives = append(alternatives, text[from:i])
			from = i + 1
		case r == '}':
			if depth--; depth == 0 {
				return append(alternatives, text[from:i]), text[i+1:], nil
			}
		}
	}
	return nil, "", errors.New("a brace is not closed")
}
