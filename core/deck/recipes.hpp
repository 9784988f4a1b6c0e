// Recipes: the numbers with which others have trained, by name (optimizer.recipe). A recipe is a list of keys that lies
// below all layers of a deck: a key that a layer gives wins, and the resolved deck holds every key with its value. No
// Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sestina {

class Deck;
struct ModelConfig;
struct RunOptions;

// One key of a recipe: its value as TOML, and the place where the source sets it.
struct RecipeKey {
  std::string key, value, source;
};

std::vector<std::string> recipe_names();
// Returns the keys of a recipe for a run of so many updates (0: not known, keys that follow from it are left out) of
// the model, whose width scales some learning rates and whose weights decide which groups there are.
// Error(internal): there is no such recipe.
std::vector<RecipeKey> recipe_keys(const std::string& name, const ModelConfig&, std::int64_t steps);

// Lays the keys of optimizer.recipe below those of the deck, if it names one. Where the deck names another
// optimizer.kind than the recipe, keys that this kind does not have are left out. Call after [run] and [model] are
// read and before the sections that a recipe sets.
void lay_recipe(Deck&, const RunOptions&, const ModelConfig&);

}  // namespace sestina
