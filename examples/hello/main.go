// hello is the whole content of the demo image: a static web server, a small shell
// and the few tools that one wants in it. It also writes that image.
//
// Which of them it is depends on the name that it is called by, as with busybox:
// /bin/sh, /bin/ls, /bin/get, ... are links to it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// tool is one command of the image. args[0] is its name.
type tool func(args []string) int

func tools() map[string]tool {
	return map[string]tool{
		"serve":    serve,
		"get":      get,
		"sh":       shell,
		"ls":       list,
		"cat":      cat,
		"env":      environment,
		"id":       identity,
		"hostname": hostname,
		"sleep":    sleep,
		"ps":       processes,
	}
}

func main() {
	args := os.Args
	name := filepath.Base(args[0])
	if name == "hello" && len(args) > 1 {
		args = args[1:]
		name = args[0]
	}
	if name == "image" {
		os.Exit(writeImage(args))
	}
	run, known := tools()[name]
	if !known {
		fmt.Fprintf(os.Stderr, "usage: hello TOOL [ARG ...], where TOOL is image or one of %v\n", names())
		os.Exit(2)
	}
	os.Exit(run(args))
}

func names() []string {
	var all []string
	for name := range tools() {
		all = append(all, name)
	}
	sort.Strings(all)
	return all
}

// fail reports an error as the tool of this name and returns its exit code.
func fail(args []string, err error) int {
	fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(args[0]), err)
	return 1
}
