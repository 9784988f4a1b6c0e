"""No code file has more than 500 lines. Prints the table of the longest."""
import tree

LIMIT = 500

lengths = sorted(((tree.text(path).count("\n"), str(path)) for path in tree.sources(suffixes=tree.CODE | {".py", ".sh"})),
                 reverse=True)
for length, path in lengths[:20]:
    print(f"{length:5}  {path}")
tree.finish([f"{path}: {length} lines, {LIMIT} are allowed" for length, path in lengths if length > LIMIT], len(lengths))
