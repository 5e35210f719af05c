package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/schema/validator"

	"github.com/rhumbdb/rhumb"
)

// textRule is a validator of strings.
type textRule struct {
	about string
	check func(s string) error
}

// Description implements validator.Describer.
func (r textRule) Description(context.Context) string { return r.about }

// MarkdownDescription implements validator.Describer.
func (r textRule) MarkdownDescription(context.Context) string { return r.about }

// ValidateString implements validator.String. Values that are not known yet are checked by the
// cluster when they are.
func (r textRule) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if err := r.check(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "Invalid value", rhumb.Message(err))
	}
}

// oneOf allows the listed words. They are the stable names that the database prints.
func oneOf(words ...string) []validator.String {
	about := "one of " + strings.Join(words, ", ")
	return []validator.String{textRule{about, func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q is not %s", s, about)
		}
		return nil
	}}}
}

// checked applies a rule of the database. The rules are not repeated here, so a plan fails for the
// reasons for which an apply would.
func checked(about string, check func(s string) error) []validator.String {
	return []validator.String{textRule{about, check}}
}

// duration allows durations as Go writes them.
var duration = checked("a duration such as 24h", func(s string) error {
	if d, err := time.ParseDuration(s); err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration; write 90m or 24h", s)
	}
	return nil
})

// oneByte allows a single byte.
var oneByte = checked("one byte", func(s string) error {
	if len(s) != 1 {
		return fmt.Errorf("%q has %d bytes; want one", s, len(s))
	}
	return nil
})
