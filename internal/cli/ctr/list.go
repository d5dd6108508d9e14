package ctr

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// named is one name of an image: a tag, a digest, or its id.
type named struct {
	ref   string
	image *runtimeapi.Image
}

func newList(s *settings) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:     "list [FILTER...]",
		Aliases: []string{"ls"},
		Short:   "List images, a line for each name",
		Long:    "A filter is name==NAME or name~=REGULAR-EXPRESSION; one of several has to hold.",
		RunE: func(cmd *cobra.Command, args []string) error {
			matches, err := parseFilters(args)
			if err != nil {
				return err
			}
			return s.use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				resp, err := conn.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
				if err != nil {
					return fmt.Errorf("cannot list images: %w", err)
				}
				found := slices.DeleteFunc(names(resp.Images), func(n named) bool { return !matches(n.ref) })
				if !quiet {
					return table(cmd.OutOrStdout(), found)
				}
				for _, n := range found {
					fmt.Fprintln(cmd.OutOrStdout(), n.ref)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "names only")
	return cmd
}

// names are all names of images, sorted.
func names(images []*runtimeapi.Image) []named {
	var all []named
	for _, image := range images {
		for _, refs := range [][]string{image.RepoTags, image.RepoDigests, {image.Id}} {
			for _, ref := range refs {
				all = append(all, named{ref, image})
			}
		}
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Compare(a.ref, b.ref) })
	return all
}

// parseFilters returns a function that reports whether a name matches one of the filters; without
// filters all names match.
func parseFilters(texts []string) (matches func(ref string) bool, err error) {
	var patterns []*regexp.Regexp
	for _, text := range texts {
		value, exact := strings.CutPrefix(text, "name==")
		pattern := "^" + regexp.QuoteMeta(unquoted(value)) + "$"
		if !exact {
			var found bool
			if value, found = strings.CutPrefix(text, "name~="); !found {
				return nil, fmt.Errorf("filter %q: want name==NAME or name~=REGULAR-EXPRESSION: %w", text, errs.Unsupported)
			}
			pattern = unquoted(value)
		}
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("filter %q: %w: %w", text, errs.Invalid, err)
		}
		patterns = append(patterns, compiled)
	}
	return func(ref string) bool {
		return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(ref) })
	}, nil
}

// unquoted is a value without the quotes that filters may have around it.
func unquoted(value string) string { return strings.Trim(value, `"'`) }

// table has ctr's columns. CRI does not report the type of an image.
func table(w io.Writer, all []named) error {
	tw := tabwriter.NewWriter(w, 1, 8, 1, ' ', 0)
	fmt.Fprintln(tw, "REF\tTYPE\tDIGEST\tSIZE\tPLATFORMS\tLABELS\t")
	for _, n := range all {
		label := "-"
		if n.image.Pinned {
			label = "io.cri-containerd.pinned=pinned"
		}
		fmt.Fprintf(tw, "%s\t-\t%s\t%s\tlinux/%s\t%s\t\n", n.ref, digest(n.image), size(n.image.Size), runtime.GOARCH, label)
	}
	return tw.Flush()
}

// digest is the digest of an image's manifest, or its ID if it was imported without one.
func digest(image *runtimeapi.Image) string {
	for _, ref := range image.RepoDigests {
		if _, found, ok := strings.Cut(ref, "@"); ok {
			return found
		}
	}
	return image.Id
}

// size is in binary units with one decimal.
func size(bytes uint64) string {
	value, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for value >= 1024 && len(units) > 1 {
		value, units = value/1024, units[1:]
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + " " + units[0]
}
