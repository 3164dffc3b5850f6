"""What a user calls a recipe -> the recipe.

demo                                a recipe of autowidth
path/to/file.py:function            a function of the user's own that returns a Recipe
package.module:function             the same from anything importable, the current directory too
"""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase

from autowidth.errors import AutoWidthError, RecipeError
from autowidth.recipes import RECIPES
from autowidth.recipes.own import load_own
from autowidth.train.recipe import Recipe
from autowidth.train.recipe_check import check_recipe

HOW_TO_NAME = (
    "autowidth train --list names every recipe; your own is path/to/file.py:function or package.module:function."
)


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Example:
        >>> find_recipe("demo").net.name
        'dec3'
    """
    if name in RECIPES:
        return RECIPES[name]()
    if ":" not in name:
        near = difflib.get_close_matches(name, RECIPES, n=3, cutoff=0.5)
        hint = f" Near names: {', '.join(near)}." if near else ""
        raise RecipeError(f"there is no recipe {name!r}.{hint} {HOW_TO_NAME}")
    recipe = _called(name, load_own(name))
    check_recipe(recipe)
    return recipe


def list_recipes(pattern: str = "*") -> str:
    """Every recipe whose name fits, a line for each."""
    fitting = {name: make() for name, make in RECIPES.items() if fnmatchcase(name, pattern)}
    if not fitting:
        near = difflib.get_close_matches(pattern, RECIPES, n=3, cutoff=0.4)
        hint = f" Near names: {', '.join(near)}." if near else ""
        raise RecipeError(f"no recipe fits {pattern!r}.{hint} Write a name, or a pattern such as 'icdar-*'.")
    width = max(map(len, fitting))
    return "\n".join(f"{name:<{width}}  {recipe.about}" for name, recipe in fitting.items())


def _called(name: str, function: object) -> Recipe:
    if not callable(function):
        raise RecipeError(f"{name} is a {type(function).__name__}; it must be a function that returns a Recipe.")
    try:
        recipe = function()
    except AutoWidthError:
        raise
    except Exception as error:
        raise RecipeError(
            f"{name} fails when it is called without arguments: {type(error).__name__}: {error}. --traceback "
            "shows where."
        ) from error
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"{name} returns a {type(recipe).__name__}; it must return an autowidth.train.recipe.Recipe.")
    return recipe
