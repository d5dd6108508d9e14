// Command docsite makes the site of the docs from the Markdown pages of the repository, offline. The
// page docs/index.md is its home and its navigation. A link that leads nowhere, an anchor without
// a heading, and a page of docs that the navigation lacks are failures.
//
// With -pictures it only writes the pictures again: docs/pictures/NAME.txt becomes NAME.svg.
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
	flag.Parse()
	work := func() error { return build(*root, *out) }
	if *pictures {
		work = func() error { return writePictures(filepath.Join(*root, "docs", "pictures")) }
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
