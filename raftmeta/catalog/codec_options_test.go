package catalog

import (
	"reflect"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestEveryTableOptionIsStored guards that commands and states hold every table option: one without a number of its own would be
// lost, or would overwrite another field.
func TestEveryTableOptionIsStored(t *testing.T) {
	var all rhumb.TableOptions
	fields := reflect.ValueOf(&all).Elem()
	for i := range fields.NumField() {
		var o rhumb.TableOptions
		switch f := reflect.ValueOf(&o).Elem().Field(i); {
		case f.CanUint():
			f.SetUint(3)
		case f.CanInt():
			f.SetInt(3)
		case f.Kind() == reflect.String:
			f.SetString("at")
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		default:
			t.Fatalf("the test cannot set option %s", fields.Type().Field(i).Name)
		}
		fields.Field(i).Set(reflect.ValueOf(&o).Elem().Field(i))
		for _, o := range []rhumb.TableOptions{o, all} {
			want := CreateTable{Name: "t", Settings: rhumb.DefaultClassSettings(), TableOptions: o}
			got, err := DecodeCommand(EncodeCommand(want))
			if err != nil || !reflect.DeepEqual(got, Command(want)) {
				t.Errorf("the command is %+v, %v, want %+v", got, err, want)
			}
			var w wireTable
			if err := decodeWire("test", encodeWire(wireTable{1, "t", 2, stateOptions(o)}), &w); err != nil || rhumb.TableOptions(w.stateOptions) != o {
				t.Errorf("the table of the state has the options %+v, %v, want %+v", w.stateOptions, err, o)
			}
		}
	}
}
