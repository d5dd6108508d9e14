// Command docsite makes the site of the docs from the Markdown pages of the repository, offline. The
// page docs/index.md is its home and its navigation. A link that leads nowhere, an anchor without
// a heading, and a page of docs that the navigation lacks are failures.
//
// With -pictures it only writes the pictures again: docs/pictures/NAME.txt and NAME.cast become NAME.svg. With -record it
// copies its input to its output, and records it in a file.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "the repository")
	out := flag.String("out", "out/docs", "directory of the site; its former content is removed")
	pictures := flag.Bool("pictures", false, "write docs/pictures/*.svg, and no site")
	recording := flag.String("record", "", "a file to record the input in, and no site")
	title := flag.String("title", "", "title of the recording")
	flag.Parse()
	work := func() error { return build(*root, *out) }
	if *pictures {
		dir := filepath.Join(*root, "docs", "pictures")
		work = func() error { return errors.Join(writePictures(dir), writeRecordings(dir)) }
	}
	if *recording != "" {
		work = func() error { return record(os.Stdin, os.Stdout, *recording, *title) }
	}
	if err := work(); err != nil {
		fmt.Fprintf(os.Stderr, "docsite: %v\n", err)
		os.Exit(1)
	}
}

// build makes the site. The error has every fault.
func build(root, out string) error {
	site, err := load(root)
	if err != nil {
		return err
	}
	if err := site.check(); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := errors.Join(site.writePages(out), site.writeFiles(out), writeAssets(out), site.writeIndex(out)); err != nil {
		return err
	}
	fmt.Printf("%s: %d pages\n", filepath.Join(out, "index.html"), len(site.pages))
	return nil
}
