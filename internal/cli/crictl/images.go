package crictl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// none stands for a name that an image lacks.
const none = "<none>"

// imageColumns are what the table of images has.
type imageColumns struct{ digests, pinned, full bool }

func newImages(s *settings) *cobra.Command {
	var format format
	var columns imageColumns
	var conditions []string
	var quiet, verbose bool
	cmd := &cobra.Command{
		Use:     "images [REPOSITORY[:TAG]]",
		Aliases: []string{"image", "img"},
		Short:   "List images",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.use(cmd, func(ctx context.Context, c *clients) error {
				found, err := listImages(ctx, c, strings.Join(args, ""), conditions)
				if err != nil {
					return err
				}
				return format.message(cmd.OutOrStdout(), &runtimeapi.ListImagesResponse{Images: found}, func(w io.Writer) error {
					if !quiet && !verbose {
						return columns.table(w, found)
					}
					for _, image := range found {
						if quiet {
							fmt.Fprintln(w, image.Id)
							continue
						}
						describeImage(w, image)
					}
					return nil
				})
			})
		},
	}
	flags := cmd.Flags()
	format.register(cmd, asTable, asJSON, asYAML)
	registerConditions(cmd, &conditions)
	flags.BoolVarP(&quiet, "quiet", "q", false, "ids only")
	flags.BoolVarP(&verbose, "verbose", "v", false, "all fields")
	flags.BoolVar(&columns.digests, "digests", false, "with digests")
	flags.BoolVar(&columns.full, "no-trunc", false, "whole ids")
	flags.BoolVar(&columns.pinned, "pinned", false, "whether the image is pinned, too")
	return cmd
}

func registerConditions(cmd *cobra.Command, conditions *[]string) {
	cmd.Flags().StringArrayVarP(conditions, "filter", "f", nil, "dangling=true|false, or reference=REGULAR-EXPRESSION; several hold at once")
}

// listImages asks for images, by their first names.
func listImages(ctx context.Context, c *clients, name string, conditions []string) ([]*runtimeapi.Image, error) {
	resp, err := c.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: name}}})
	if err != nil {
		return nil, fmt.Errorf("cannot list images: %w", err)
	}
	found := resp.Images
	for _, condition := range conditions {
		holds, err := parseCondition(condition)
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(i *runtimeapi.Image) bool { return !holds(i) })
	}
	slices.SortFunc(found, func(a, b *runtimeapi.Image) int { return cmp.Compare(imageName(a), imageName(b)) })
	return found, nil
}

// parseCondition reads one --filter.
func parseCondition(text string) (holds func(*runtimeapi.Image) bool, err error) {
	key, value, _ := strings.Cut(text, "=")
	switch key {
	case "dangling":
		want, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("--filter %q: want dangling=true or dangling=false: %w", text, errs.Invalid)
		}
		return func(i *runtimeapi.Image) bool { return (len(i.RepoTags) == 0) == want }, nil
	case "reference":
		pattern, err := regexp.Compile(value)
		if err != nil {
			return nil, fmt.Errorf("--filter %q: %w: %w", text, errs.Invalid, err)
		}
		return func(i *runtimeapi.Image) bool {
			return slices.ContainsFunc(append(slices.Clone(i.RepoTags), i.RepoDigests...), pattern.MatchString)
		}, nil
	}
	return nil, fmt.Errorf("--filter %q: want dangling=... or reference=...: %w", text, errs.Unsupported)
}

func imageName(i *runtimeapi.Image) string {
	for _, names := range [][]string{i.RepoTags, i.RepoDigests} {
		if len(names) > 0 {
			return names[0]
		}
	}
	return i.Id
}

// table has a row for each name of each image.
func (c *imageColumns) table(w io.Writer, images []*runtimeapi.Image) error {
	row := func(name, tag, digest, id, size, pinned string) []string {
		all := []string{name, tag}
		if c.digests {
			all = append(all, digest)
		}
		if all = append(all, id, size); c.pinned {
			all = append(all, pinned)
		}
		return all
	}
	var rows [][]string
	for _, image := range images {
		repository, digest := none, none
		if len(image.RepoDigests) > 0 {
			repository, digest, _ = strings.Cut(image.RepoDigests[0], "@")
		}
		tags := image.RepoTags
		if len(tags) == 0 {
			tags = []string{repository + ":" + none}
		}
		for _, tag := range tags {
			colon := max(0, strings.LastIndex(tag, ":"))
			rows = append(rows, row(tag[:colon], strings.TrimPrefix(tag[colon:], ":"), short(digest, c.full),
				short(image.Id, c.full), size(image.Size, 3), strconv.FormatBool(image.Pinned)))
		}
	}
	return table(w, row("IMAGE", "TAG", "DIGEST", "IMAGE ID", "SIZE", "PINNED"), rows)
}

func describeImage(w io.Writer, i *runtimeapi.Image) {
	field(w, "ID", i.Id)
	for _, tag := range i.RepoTags {
		field(w, "RepoTags", tag)
	}
	for _, digest := range i.RepoDigests {
		field(w, "RepoDigests", digest)
	}
	if i.Size != 0 {
		fmt.Fprintf(w, "Size: %d\n", i.Size)
	}
	if i.Uid != nil {
		fmt.Fprintf(w, "Uid: %d\n", i.Uid.Value)
	}
	field(w, "Username", i.Username)
	if i.Pinned {
		field(w, "Pinned", "true")
	}
	fmt.Fprintln(w)
}

// isDigest reports whether an image's name is an id.
func isDigest(name string) bool { return strings.HasPrefix(name, "sha256:") }
