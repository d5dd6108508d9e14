package selection

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/errs"
)

// RegisterConditions adds --filter.
func RegisterConditions(cmd *cobra.Command, conditions *[]string) {
	cmd.Flags().StringArrayVarP(conditions, "filter", "f", nil, "dangling=true|false, or reference=REGULAR-EXPRESSION; several hold at once")
}

// Images lists images, by their first names.
func Images(ctx context.Context, c *connection.Clients, name string, conditions []string) ([]*runtimeapi.Image, error) {
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
