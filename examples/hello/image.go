package main

import (
	"fmt"
	"os"

	"github.com/berthrun/berth/internal/image/imagetest"
)

// imageName is what examples/hello-pod.yaml asks for.
const imageName = "berth.run/hello:demo"

// writeImage writes an archive of an image that holds this very program under the
// names of all its tools.
func writeImage(args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: hello image ARCHIVE")
		return 2
	}
	self, err := os.Executable()
	if err != nil {
		return fail(args, err)
	}
	files := []imagetest.File{
		{Path: "/bin/hello", Source: self, Mode: 0o755},
		{Path: "/tmp", Dir: true, Mode: 0o1777},
		{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/:/bin/sh\nhello:x:1000:1000:hello:/:/bin/sh\n")},
		{Path: "/etc/group", Content: []byte("root:x:0:\nhello:x:1000:\n")},
	}
	for _, name := range names() {
		files = append(files, imagetest.File{Path: "/bin/" + name, Symlink: "hello"})
	}
	archive, err := os.Create(args[1])
	if err != nil {
		return fail(args, err)
	}
	spec := imagetest.Spec{Name: imageName, Files: files, Env: []string{"PATH=/bin"}, Cmd: []string{"serve"}, User: "hello"}
	if err := imagetest.Archive(archive, spec); err != nil {
		return fail(args, err)
	}
	if err := archive.Close(); err != nil {
		return fail(args, err)
	}
	return 0
}
