"""No code file has more than 500 lines, and of the rooms' files, put in order of their lengths, the middle one has at least 95: what
belongs to one idea stands in one file. Prints the table of the longest."""
import tree

LIMIT = 500
MEDIAN = 95


def middle(numbers):
    return sorted(numbers)[(len(numbers) + 1) // 2 - 1]


assert middle([3, 1, 2]) == 2 and middle([4, 1, 2, 3]) == 2
lengths = sorted(((tree.text(path).count("\n"), str(path)) for path in tree.sources(suffixes=tree.CODE | {".py", ".sh"})),
                 reverse=True)
for length, path in lengths[:20]:
    print(f"{length:5}  {path}")
problems = [f"{path}: {length} lines, {LIMIT} are allowed" for length, path in lengths if length > LIMIT]
median = middle([tree.text(path).count("\n") for path in tree.sources(tree.ROOMS)])
if median < MEDIAN:
    problems.append(f"the median file of the rooms has {median} lines, {MEDIAN} are asked: short files belong to their neighbours")
tree.finish(problems, len(lengths))
