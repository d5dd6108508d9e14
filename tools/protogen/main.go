// Protogen compiles protobuf files and writes Go code beside them:
//
//	protogen DIR FILE...
//
// The compiler and the two generators are modules that go.mod pins, so the output is the same
// on every machine. Debian's protoc differs from release to release.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: protogen DIR FILE...")
		os.Exit(2)
	}
	if err := generate(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func generate(ctx context.Context, dir string, names []string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard, // carries the comments
	}
	files, err := compiler.Compile(ctx, names...)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: names, Parameter: proto.String("paths=source_relative")}
	seen := map[string]bool{}
	for _, file := range files {
		request.ProtoFile = appendWithImports(request.ProtoFile, file, seen)
	}
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	for _, generator := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := run(ctx, generator, input, dir); err != nil {
			return fmt.Errorf("cannot run %s: %w", generator, err)
		}
	}
	return nil
}

// appendWithImports appends a file after the files that it imports, as generators require.
func appendWithImports(all []*descriptorpb.FileDescriptorProto, file protoreflect.FileDescriptor, seen map[string]bool) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return all
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		all = appendWithImports(all, imports.Get(i).FileDescriptor, seen)
	}
	return append(all, protoutil.ProtoFromFileDescriptor(file))
}

// run passes a request to a generator and writes the files that it returns below dir.
func run(ctx context.Context, generator string, input []byte, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "tool", generator)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, file := range response.File {
		if err := os.WriteFile(filepath.Join(dir, file.GetName()), []byte(file.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
